// Lobby: where newcomers wait until the ranks of a job grow their communicator, in the process that
// leads it. A world that grows hands it on to the larger one, and with it the listener at which
// newcomers look: so the job stays where it was found. Callable from any thread.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "base/guarded.h"
#include "transport/joining/door.h"

namespace gradring::transport {

class Lobby {
 public:
  // Those who open the door: the monitors of the worlds it has been in. `wake` has its own look for
  // a listener; it must not block.
  void enter(const void* opener, std::function<void()> wake);
  // `listener` goes to one of the others, if it is one. With the last opener all go.
  void leave(const void* opener, Fd listener);
  Fd take_listener();  // One that nobody has, or none.

  // Without those who have gone. Only one thread at a time takes in.
  bool has_room();
  void take_in(Arrival newcomer);
  std::size_t count();                          // Of those who are still there.
  std::vector<Arrival> take(std::size_t most);  // In the order in which they came.
  void put_back(std::vector<Arrival> newcomers);

 private:
  struct State {
    std::map<const void*, std::function<void()>> openers;
    Fd listener;
    std::deque<Arrival> newcomers;
  };
  static void forget_gone(State& state);

  Guarded<State> state_;
};

}  // namespace gradring::transport
