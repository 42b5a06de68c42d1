// Reductions in place in memory that all ranks of a host have mapped: the bits of any other
// all_reduce, wherever the vectors lie, and whichever ranks come late, differ or die.
#include "collectives/flat/shared_array.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <latch>
#include <string>
#include <thread>

#include "support/collectives/operations.h"
#include "support/run_ranks.h"

namespace gradring::testing::shared_array_test {
namespace {

using collectives::Communicator;
using collectives::Operation;
using collectives::SharedArray;

constexpr std::size_t kBytes = 1 << 20;

// Where a rank's vector lies: in shared memory, `offset` bytes in, or (-1) in its own.
using Offsets = std::vector<int>;

Prepared in_place(PlanCase c, int ranks) {
  c.world_size = ranks;
  c.is_in_place = true;
  return prepared(c);
}

// Runs one all_reduce on this rank and says whether it got the bits that the order gives.
bool is_right(Communicator& comm, SharedArray& array, const Prepared& prepared,
              const Offsets& offsets) {
  const auto rank = static_cast<std::size_t>(comm.rank());
  Memory mine = prepared.all[rank];
  Operation operation = operation_of(prepared.c, comm.rank(), mine);
  std::byte* own = operation.output;
  const int offset = offsets[rank % offsets.size()];
  if (offset >= 0) {
    std::byte* shared = array.data() + offset;
    std::memcpy(shared, own, mine.output_bytes);
    operation.input = operation.output = shared;
  }
  comm.run(operation, kPlenty);
  if (offset >= 0) std::memcpy(own, operation.output, mine.output_bytes);
  return mine.output_is(prepared.expected[rank]);
}

TEST_CASE("shared array: every rank gets the bits of the documented order, wherever vectors lie") {
  for (const int ranks : {2, 3, 4, 7}) {
    std::vector<Prepared> cases;
    for (const std::uint64_t count : {1, 9000, 70'001, 200'003})
      cases.push_back(in_place({.count = count}, ranks));
    std::atomic<int> wrong{0};
    run_ranks({.ranks = ranks, .mode = TransportMode::kShm}, [&](Communicator& comm) {
      const auto array = comm.share_memory(kBytes, kPlenty);
      REQUIRE(array != nullptr);
      for (const Offsets& offsets :
           {Offsets{0}, Offsets{64}, Offsets{4}, Offsets{0, 64}, Offsets{0, -1}, Offsets{-1}})
        for (const Prepared& each : cases)
          if (!is_right(comm, *array, each, offsets)) ++wrong;
    });
    CAPTURE(ranks);
    CHECK(wrong == 0);
  }
}

TEST_CASE("shared array: what controls it shares no page of this kernel's with the first part") {
  run_ranks({.ranks = 2, .mode = TransportMode::kShm}, [&](Communicator& comm) {
    const auto array = comm.share_memory(kBytes, kPlenty);
    REQUIRE(array != nullptr);
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    if (comm.rank() == 0) CHECK(reinterpret_cast<std::uintptr_t>(array->data()) % page == 0);
  });
}

TEST_CASE("shared array: every dtype, and averages") {
  std::vector<Prepared> cases;
  for (std::size_t d = 0; d < kDTypeCount; ++d)
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax})
      if (const auto dtype = static_cast<DType>(d); is_defined(dtype, op))
        cases.push_back(in_place({.count = 90'001, .dtype = dtype, .reduce_op = op}, 3));
  std::atomic<int> wrong{0};
  run_ranks({.ranks = 3, .mode = TransportMode::kShm}, [&](Communicator& comm) {
    const auto array = comm.share_memory(kBytes, kPlenty);
    for (const Prepared& each : cases)
      if (!is_right(comm, *array, each, {0})) ++wrong;
  });
  CHECK(wrong == 0);
}

TEST_CASE("shared array: many in a row, several arrays, and one that a rank has let go of") {
  const Prepared shorter = in_place({.count = 50'000}, 3);
  const Prepared longer = in_place({.count = 100'000}, 3);
  std::atomic<int> wrong{0};
  run_ranks({.ranks = 3, .mode = TransportMode::kShm}, [&](Communicator& comm) {
    auto first = comm.share_memory(kBytes, kPlenty);
    const auto second = comm.share_memory(kBytes / 2, kPlenty);
    for (int i = 0; i < 20; ++i) {
      if (!is_right(comm, *first, shorter, {128})) ++wrong;
      if (!is_right(comm, *second, longer, {0})) ++wrong;
    }
    if (comm.rank() == 1) first.reset();
    if (!is_right(comm, first ? *first : *second, longer, {0})) ++wrong;
  });
  CHECK(wrong == 0);
}

TEST_CASE(
    "shared array: a divisor that an earlier operation writes divides the sum, if it is whole") {
  for (const double share : {2.0, 0.25}) {
    run_ranks({.ranks = 2, .mode = TransportMode::kShm}, [&](Communicator& comm) {
      for (const bool is_shared : {true, false}) {
        const auto array = comm.share_memory(kBytes, kPlenty);
        std::vector<float> own(100'000, 6.0F);
        auto* values = is_shared ? reinterpret_cast<float*>(array->data()) : own.data();
        std::fill_n(values, own.size(), 6.0F);
        double total = share;
        Operation weigh;
        weigh.request.dtype = DType::kFloat64;
        weigh.request.count = 1;
        weigh.input = weigh.output = reinterpret_cast<std::byte*>(&total);
        Operation average;
        average.request.reduce_op = ReduceOp::kAvg;
        average.request.count = own.size();
        average.divisor_at = &total;
        average.input = average.output = reinterpret_cast<std::byte*>(values);
        const auto first = comm.submit(weigh, kPlenty);
        const auto second = comm.submit(average, kPlenty);
        comm.wait(*first, kPlenty);
        comm.wait(*second, kPlenty);
        const float expected = share == 2.0 ? 12.0F / 4 : 12.0F;
        CHECK(std::count(values, values + own.size(), expected) == 100'000);
      }
    });
  }
}

TEST_CASE("shared array: asking for different sizes is a Mismatch on every rank") {
  const auto ends = end_of_ranks({.ranks = 3, .mode = TransportMode::kShm}, [](Communicator& comm) {
    comm.share_memory(comm.rank() == 1 ? 64 : 128, kPlenty);
  });
  for (const Failure& end : ends) CHECK(end.kind == ErrorKind::kMismatch);
}

TEST_CASE("shared array: without shared memory there is none") {
  run_ranks({.ranks = 2, .mode = TransportMode::kTcp},
            [](Communicator& comm) { CHECK(comm.share_memory(kBytes, kPlenty) == nullptr); });
}

TEST_CASE("shared array: a rank that leaves instead of taking part is named to the others") {
  const Prepared any = in_place({.count = 50'000}, 3);
  const auto ends =
      end_of_ranks({.ranks = 3, .mode = TransportMode::kShm}, [&any](Communicator& comm) {
        const auto array = comm.share_memory(kBytes, kPlenty);
        if (comm.rank() == 2) return;
        is_right(comm, *array, any, {0});
      });
  for (const std::size_t rank : {0, 1}) {
    CAPTURE(ends[rank].text);
    CHECK(ends[rank].kind == ErrorKind::kPeerLost);
    CHECK(ends[rank].rank == 2);
  }
}

// Rank 1 stands for one that was frozen in the call and goes on when the others have given it up:
// it still reads and writes whatever part it has in hand.
TEST_CASE("shared array: after a call that failed it is its owner's alone, in what the call used") {
  constexpr std::size_t kBegin = 5000;  // Not at the edge of a page.
  constexpr std::size_t kUsed = 300'000;
  const auto has_only = [](const std::byte* begin, std::size_t bytes, int value) {
    return std::count(begin, begin + bytes, std::byte(value)) == static_cast<std::ptrdiff_t>(bytes);
  };
  std::latch failed(2);
  std::latch disturbed(2);
  run_ranks({.ranks = 2, .mode = TransportMode::kShm}, [&](Communicator& comm) {
    const auto array = comm.share_memory(kBytes, kPlenty);
    std::byte* const own = array->data();
    if (comm.rank() == 1) {
      failed.arrive_and_wait();
      std::byte* const theirs = array->part(0) + kBegin;
      CHECK(has_only(theirs, kUsed, 3));
      std::fill_n(theirs, kUsed, std::byte{9});
      disturbed.arrive_and_wait();
      return;
    }
    std::fill_n(own, kBytes, std::byte{2});
    std::fill_n(own + kBegin, kUsed, std::byte{3});
    Operation sum;
    sum.request.dtype = DType::kInt8;
    sum.request.count = kUsed;
    sum.input = sum.output = own + kBegin;
    CHECK_THROWS_AS(comm.run(sum, Millis{100}), TimedOut);
    CHECK(has_only(own + kBegin, kUsed, 3));
    std::fill_n(own + kBegin, kUsed, std::byte{7});
    failed.arrive_and_wait();
    disturbed.arrive_and_wait();
    CHECK(has_only(own + kBegin, kUsed, 7));
    CHECK(has_only(own, kBegin, 2));
    CHECK(has_only(own + kBegin + kUsed, kBytes - kBegin - kUsed, 2));
  });
}

}  // namespace
}  // namespace gradring::testing::shared_array_test
