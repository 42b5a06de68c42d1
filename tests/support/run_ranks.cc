#include "support/run_ranks.h"

#include <unistd.h>

#include <thread>

#include "transport/links/socket.h"

namespace gradring::testing {

using collectives::Communicator;
using transport::JoinOptions;

std::vector<JoinOptions> options_for(const Job& job) {
  const transport::Fd listener = transport::listen_tcp("127.0.0.1", 0, 64);
  std::vector<JoinOptions> all;
  for (int rank = 0; rank < job.ranks; ++rank) {
    JoinOptions options;
    options.rank = rank;
    options.world_size = job.ranks;
    options.rendezvous = {"127.0.0.1", transport::local_port(listener.get())};
    options.credentials = {"a secret of this test", job.encryption};
    options.mode = job.mode;
    options.timeout = job.timeout;
    options.heartbeat_timeout = job.heartbeat_timeout;
    options.record = job.record;
    all.push_back(std::move(options));
  }
  all[0].listen_fd = ::dup(listener.get());
  return all;
}

std::vector<std::exception_ptr> run_threads(int threads, const std::function<void(int)>& as_rank) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(threads));
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([&as_rank, i, &error = errors[static_cast<std::size_t>(i)]] {
      try {
        as_rank(i);
      } catch (...) {
        error = std::current_exception();
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  return errors;
}

namespace {

std::vector<std::exception_ptr> play(const Job& job, const AsRank& as_rank) {
  const std::vector<JoinOptions> options = options_for(job);
  return run_threads(job.ranks, [&](int rank) {
    const auto comm = Communicator::join(options[static_cast<std::size_t>(rank)]);
    as_rank(*comm);
    comm->close();
  });
}

}  // namespace

void run_ranks(const Job& job, const AsRank& as_rank) {
  for (const std::exception_ptr& error : play(job, as_rank))
    if (error) std::rethrow_exception(error);
}

std::vector<Failure> end_of_ranks(const Job& job, const AsRank& as_rank) {
  std::vector<Failure> failures;
  for (const std::exception_ptr& error : play(job, as_rank)) {
    failures.emplace_back();
    if (!error) continue;
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& thrown) {
      failures.back() = Failure::from(thrown);
    }
  }
  return failures;
}

}  // namespace gradring::testing
