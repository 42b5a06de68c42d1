// A whole job inside one process: N ranks as threads, met over real sockets on a free port of the
// loopback interface. For the tests of World and Communicator.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "collectives/communicator/communicator.h"
#include "transport/joining/rendezvous.h"

namespace gradring::testing {

using transport::TransportMode;

struct Job {
  int ranks = 2;
  TransportMode mode = TransportMode::kAuto;
  Millis timeout{20'000};
  Millis heartbeat_timeout{5000};
  RecordOptions record = {};
  transport::Encryption encryption = transport::Encryption::kBetweenHosts;
};

// What a rank passes to join; rank 0's brings a listening socket along.
std::vector<transport::JoinOptions> options_for(const Job& job);

// Calls `as_rank(i)` for each i at once, on threads; what each threw, or null.
std::vector<std::exception_ptr> run_threads(int threads, const std::function<void(int)>& as_rank);

using AsRank = std::function<void(collectives::Communicator&)>;

// Joins, runs, closes; rethrows the first error of any rank, in rank order.
void run_ranks(const Job& job, const AsRank& as_rank);
// The same, returning what each rank ended with instead.
std::vector<Failure> end_of_ranks(const Job& job, const AsRank& as_rank);

}  // namespace gradring::testing
