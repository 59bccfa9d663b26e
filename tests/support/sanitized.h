// Sanitizers change how much memory and time a program takes, so bounds on these say nothing of the
// product. Tests leave such bounds out where kSanitized is true.
#pragma once

namespace gnomon::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace gnomon::test
