#include "sim/scale/real_start.h"

#include <unistd.h>

#include <barrier>
#include <iomanip>
#include <span>
#include <thread>
#include <vector>

#include "collectives/communicator/communicator.h"
#include "transport/joining/rendezvous.h"
#include "transport/links/socket.h"

namespace gradring::sim {
namespace {

constexpr Millis kPatience{120'000};

// All ranks come to the end of a step together; rank 0 says how long it took.
class Stopwatch {
 public:
  Stopwatch(Rank ranks, std::ostream& out) : barrier_(ranks), out_(out) {}

  void end_of(Rank rank, const char* step) {
    barrier_.arrive_and_wait();
    if (rank == 0) {
      const Time now = Clock::now();
      if (step != nullptr)
        out_ << "  " << step << ' ' << std::setprecision(3) << seconds_between(began_, now)
             << " s\n";
      began_ = now;
    }
    barrier_.arrive_and_wait();
  }

 private:
  std::barrier<> barrier_;
  std::ostream& out_;
  Time began_ = Clock::now();
};

void live(const transport::JoinOptions& options, Stopwatch& watch) {
  const Rank rank = options.rank;
  watch.end_of(rank, nullptr);
  const auto comm = collectives::Communicator::join(options);
  watch.end_of(rank, "join");
  float value = 1;
  collectives::Operation operation;
  operation.request.op = OpKind::kAllReduce;
  operation.request.count = 1;
  operation.output = std::as_writable_bytes(std::span(&value, 1)).data();
  operation.input = operation.output;
  comm->run(operation, kPatience);
  watch.end_of(rank, "first all_reduce, which connects");
  comm->run(operation, kPatience);
  watch.end_of(rank, "second all_reduce");
  comm->close();
  watch.end_of(rank, "close");
}

}  // namespace

void start_for_real(Rank ranks, std::ostream& out) {
  constexpr int kBacklog = 1024;
  transport::Fd listener = transport::listen_tcp("127.0.0.1", 0, kBacklog);
  transport::JoinOptions options;
  options.world_size = ranks;
  options.rendezvous = {"127.0.0.1", transport::local_port(listener.get())};
  options.credentials = {"a secret of this program"};
  options.mode = transport::TransportMode::kTcp;
  options.timeout = kPatience;
  options.heartbeat_timeout = kPatience;
  out << ranks << " real ranks, as threads of one process:\n";
  Stopwatch watch(ranks, out);
  std::vector<std::thread> threads;
  for (options.rank = 0; options.rank < ranks; ++options.rank) {
    options.listen_fd = options.rank == 0 ? ::dup(listener.get()) : -1;
    // One that fails takes all along: the others would wait for it.
    threads.emplace_back([options, &watch] { live(options, watch); });
  }
  listener.reset();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace gradring::sim
