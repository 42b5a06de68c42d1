// What a forked child does with its copies of objects that have threads: it leaves them alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace gradring::transport {

// How often this process is a fork of the one that loaded the library: 0 for the first, counted by
// a fork handler.
std::uint64_t fork_generation();
// The same, and the fork handler is there from now on: for whoever joins no world.
std::uint64_t watch_forks();

// How DeleteHere deletes: `run` is called on the thread that let go last, with what is to be done.
// For hosts whose lock that thread may hold, as Python's: an end joins threads, and may linger for
// what was sent. Set once, before there are objects; without it they are just deleted.
void set_deletion(void (*run)(const std::function<void()>& deletion));
void run_deletion(const std::function<void()>& deletion);

// Deletes an object in the process that made it only. In a forked child its threads do not exist,
// its locks are in any state, and to destroy a condition variable at which one of the parent's
// threads sleeps waits for that thread, for ever. The child's copy is memory and no more: its
// descriptors are let go of at the fork (transport/links/fd.h).
class DeleteHere {
 public:
  explicit DeleteHere(std::uint64_t generation) : generation_(generation) {}
  template <typename Object>
  void operator()(Object* object) const {
    if (fork_generation() == generation_) run_deletion([object] { delete object; });
  }

 private:
  std::uint64_t generation_;
};

template <typename Object, typename... Arguments>
std::shared_ptr<Object> make_here(Arguments&&... arguments) {
  const DeleteHere deleter(watch_forks());
  return std::shared_ptr<Object>(new Object(std::forward<Arguments>(arguments)...), deleter);
}

}  // namespace gradring::transport
