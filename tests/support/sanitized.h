// Whether a sanitizer runs beside the test: its allocator and its checks make memory and time their
// own, so that bounds on them say nothing of the product.
#pragma once

namespace gnomon::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace gnomon::test
