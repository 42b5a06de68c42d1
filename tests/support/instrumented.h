// Whether this build watches every access of every thread, which takes many times as long: what a
// test repeats only to be thorough it repeats less there. All other builds do all of it.
#pragma once

namespace gradring::testing {

#ifdef __SANITIZE_THREAD__
inline constexpr bool kWatchesThreads = true;
#else
inline constexpr bool kWatchesThreads = false;
#endif

}  // namespace gradring::testing
