// How long the collectives of one shared-memory segment take: median microseconds a call by size,
// with ranks as forked processes, each on a processor in turn, in place where the operation allows
// it, or with --apart from an input of its own. The answers are checked before they are timed. Run:
// bench_flat [--apart] [op [ranks...]], default all_reduce 2 4; float32 sums.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/error.h"
#include "collectives/flat/flat.h"

namespace gradring::collectives {
namespace {

constexpr std::size_t kLargest = std::size_t{256} << 20;
constexpr double kSecondsPerSize = 0.25;
constexpr double kSecondsPerRound = 2e-3;

struct Bench {
  OpKind op;
  Rank ranks;
  bool is_apart;  // The input is another array than the output.
};

// Small whole numbers, so that the sum is exact in any order.
float element(std::size_t index, Rank rank) {
  return static_cast<float>((index * 7 + static_cast<std::size_t>(rank) * 3) % 11);
}

class Runner {
 public:
  Runner(const Bench& bench, transport::SharedMemory memory, Rank rank)
      : bench_(bench),
        rank_(rank),
        group_(1, members(bench.ranks)),
        flat_(std::move(memory), group_, rank),
        vector_(kLargest / sizeof(float)),
        input_(bench.is_apart ? vector_.size() : 0) {
    if (bench.ranks <= ::sysconf(_SC_NPROCESSORS_ONLN))
      group_.looks_before_yield = limits::kLooksBeforeYield;
  }

  void run_all() {
    for (std::size_t bytes = 4; bytes <= kLargest; bytes *= 4) {
      const std::size_t count = bytes / sizeof(float);
      check(count);
      const double seconds = median_seconds(count);
      if (rank_ == 0) {
        std::printf("%10.2f", seconds * 1e6);
        std::fflush(stdout);
      }
    }
  }

 private:
  static std::vector<Rank> members(Rank ranks) {
    std::vector<Rank> all;
    for (Rank rank = 0; rank < ranks; ++rank) all.push_back(rank);
    return all;
  }

  Request request(OpKind op, std::size_t count) const {
    Request request;
    request.op = op;
    request.rank = rank_;
    request.world_size = bench_.ranks;
    request.count = count;
    request.order = order_for(op, bench_.ranks, count * sizeof(float), DType::kFloat32);
    return request;
  }

  std::vector<float>& input() { return bench_.is_apart ? input_ : vector_; }

  // Of an operation that takes or gives only a rank's own part, or else all of it.
  std::byte* begin_in(std::vector<float>& vector, std::size_t count, bool is_part) {
    const std::uint64_t begin = is_part ? chunk_begin(count, bench_.ranks, rank_) : 0;
    return reinterpret_cast<std::byte*>(vector.data() + begin);
  }

  void call(const Request& request) {
    Call call;
    call.op = request.op;
    call.dtype = request.dtype;
    call.count = request.count;
    const std::byte* from = begin_in(input(), request.count, request.op == OpKind::kAllGather);
    std::byte* to = begin_in(vector_, request.count, request.op == OpKind::kReduceScatter);
    transport::Idle idle(group_, Millis{60000}, false);
    flat_.run(request, call, ++seq_, from, to, idle);
  }

  void check(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) input()[i] = element(i, rank_);
    call(request(bench_.op, count));
    const std::uint64_t begin = chunk_begin(count, bench_.ranks, rank_);
    const std::uint64_t end = chunk_begin(count, bench_.ranks, rank_ + 1);
    Rank owner = 0;
    for (std::size_t i = 0; i < count; ++i) {
      while (chunk_begin(count, bench_.ranks, owner + 1) <= i) ++owner;
      float expected = 0;
      for (Rank rank = 0; rank < bench_.ranks; ++rank) expected += element(i, rank);
      if (bench_.op == OpKind::kReduceScatter && (i < begin || i >= end)) continue;
      if (bench_.op == OpKind::kReduce && rank_ != 0) break;
      if (bench_.op == OpKind::kAllGather) expected = element(i, owner);
      if (bench_.op == OpKind::kBroadcast) expected = element(i, 0);
      if (vector_[i] == expected) continue;
      std::fprintf(stderr, "bench_flat: wrong answer: rank %d, element %zu of %zu\n", rank_, i,
                   count);
      std::exit(1);
    }
    // Not zeros: an AMD EPYC (family 26) moves those in two thirds of the time. Sums of sums become
    // infinite, which takes no longer.
    std::fill(input().begin(), input().end(), 1.0f);
  }

  // The calls of a round follow each other, as in training; every round starts together, and ends
  // when the last rank is done, as a root may be before the others.
  double median_seconds(std::size_t count) {
    const Request timed = request(bench_.op, count);
    const double guess = 1e-6 + static_cast<double>(count) * 4 / 4e9;
    const int calls = std::max(1, static_cast<int>(kSecondsPerRound / guess));
    const int rounds = std::clamp(static_cast<int>(kSecondsPerSize / (guess * calls)), 7, 300);
    std::vector<double> seconds;
    for (int round = 0; round < rounds; ++round) {
      call(request(OpKind::kBarrier, 0));
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < calls; ++i) call(timed);
      call(request(OpKind::kBarrier, 0));
      const auto end = std::chrono::steady_clock::now();
      seconds.push_back(std::chrono::duration<double>(end - start).count() / calls);
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }

  Bench bench_;
  Rank rank_;
  transport::Group group_;
  Flat flat_;
  std::vector<float> vector_;
  std::vector<float> input_;  // Empty if it is vector_.
  std::uint64_t seq_ = 0;
};

// Before its memory is taken. Without a right to it, it stays where the kernel has it.
void bind_to_processor(Rank rank) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(
      static_cast<std::size_t>(rank) % static_cast<std::size_t>(::sysconf(_SC_NPROCESSORS_ONLN)),
      &one);
  static_cast<void>(::sched_setaffinity(0, sizeof one, &one));
}

int run(const Bench& bench) {
  const std::size_t bytes = Flat::memory_bytes(bench.ranks);
  const auto memory = transport::SharedMemory::create(bytes);
  Flat::lay_out(memory, bench.ranks, static_cast<Rank>(::sysconf(_SC_NPROCESSORS_ONLN)));
  std::printf("%-14s %d ranks", std::string(name(bench.op)).c_str(), bench.ranks);
  std::fflush(stdout);
  for (Rank rank = 0; rank < bench.ranks; ++rank) {
    if (::fork() != 0) continue;
    bind_to_processor(rank);
    Runner(bench, transport::SharedMemory::attach(transport::Fd(::dup(memory.fd())), bytes), rank)
        .run_all();
    std::exit(0);
  }
  int result = 0;
  for (Rank rank = 0; rank < bench.ranks; ++rank) {
    int status = 0;
    ::wait(&status);
    if (status != 0) result = 1;
  }
  std::printf("\n");
  return result;
}

}  // namespace
}  // namespace gradring::collectives

int main(int argc, char** argv) {
  using namespace gradring;
  std::vector<std::string> words(argv + 1, argv + argc);
  const bool is_apart = std::erase(words, "--apart") > 0;
  const std::string wanted = words.empty() ? "all_reduce" : words[0];
  std::vector<int> ranks;
  for (std::size_t i = 1; i < words.size(); ++i) ranks.push_back(std::atoi(words[i].c_str()));
  if (ranks.empty()) ranks = {2, 4};
  std::printf("median us    %9s", "");
  for (std::size_t bytes = 4; bytes <= collectives::kLargest; bytes *= 4)
    std::printf("%9zu%s",
                bytes < 1024      ? bytes
                : bytes < 1048576 ? bytes >> 10
                                  : bytes >> 20,
                bytes < 1024      ? "B"
                : bytes < 1048576 ? "K"
                                  : "M");
  std::printf("\n");
  int result = 0;
  for (const OpKind op : {OpKind::kAllReduce, OpKind::kReduceScatter, OpKind::kAllGather,
                          OpKind::kBroadcast, OpKind::kReduce})
    if (wanted == "all" || wanted == name(op))
      for (const int count : ranks) result |= collectives::run({op, count, is_apart});
  return result;
}
