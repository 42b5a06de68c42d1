// Dialer: makes a client's links to shards, each on a thread of its own, so that a host that does
// not answer keeps nobody from the others. Owned by the Client; used by whoever drives it.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "ps/protocol/dial.h"

namespace gradring::ps {

class Dialer {
 public:
  static constexpr Millis kTime{2000};  // An attempt takes no longer.
  struct Outcome {
    std::unique_ptr<transport::Link> link;
    Failure failure;  // Why there is none now. InvalidArgument: there will never be one.
  };

  // `addresses`: of each shard's server. `wake`: an eventfd that is written to when an attempt
  // ends.
  Dialer(std::vector<std::string> addresses, transport::Credentials credentials,
         transport::TransportMode mode, int wake);
  ~Dialer();  // Waits for attempts that are under way.

  // False if an attempt is under way, or over and not taken.
  bool begin(std::uint32_t shard);
  // Once an attempt is over.
  std::optional<Outcome> take(std::uint32_t shard);

 private:
  struct Attempt {
    std::thread thread;
    Outcome outcome;
    std::atomic<bool> is_over{false};  // The thread's last word: the outcome is there.
  };
  void dial(std::uint32_t shard, Attempt& attempt) const;

  const std::vector<std::string> addresses_;
  const transport::Credentials credentials_;
  const transport::TransportMode mode_;
  const int wake_;
  std::vector<std::unique_ptr<Attempt>> attempts_;  // By shard.
};

}  // namespace gradring::ps
