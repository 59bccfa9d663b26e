// In sanitizer builds only. Boost.Context tells a sanitizer of every change of stack when
// coroutines switch by ucontext, but a Boost library that was built to switch by its own assembly
// lacks the one function that then is not in a header. This is it.
#include <boost/context/fiber.hpp>

namespace boost::context::detail {

// What runs on the calling thread: a coroutine, or the thread itself until it enters the first one.
// Not inlined: a coroutine may come back from a switch on another thread than it left.
fiber_activation_record*& fiber_activation_record::current() noexcept {
  thread_local fiber_activation_record thread;
  thread_local fiber_activation_record* running = &thread;
  return running;
}

}  // namespace boost::context::detail
