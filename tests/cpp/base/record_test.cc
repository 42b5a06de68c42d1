// What is recorded of operations: the last ones in order, those under way for certain, readable at
// any moment from any thread; and the clock they are stamped with.
#include "base/record.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/json.h"
#include "base/tallies.h"

namespace gradring::testing::record_test {
namespace {

Call call_of(std::uint64_t count) {
  Call call;
  call.op = OpKind::kAllReduce;
  call.dtype = DType::kFloat32;
  call.reduce_op = ReduceOp::kMax;
  call.root = -1;
  call.count = count;
  call.counts_hash = count * 3;
  return call;
}

TEST_CASE("a ring keeps the last operations, in the order they began") {
  OperationRing ring(4);
  for (std::uint64_t seq = 1; seq <= 10; ++seq)
    ring.end(ring.begin(call_of(seq), seq), OperationState::kFinished);
  const auto records = ring.read();
  REQUIRE(records.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(records[i].seq == 7 + i);
    CHECK((records[i].call == call_of(7 + i)));
    CHECK(records[i].state == OperationState::kFinished);
    CHECK(records[i].begun > 0);
    CHECK(records[i].ended >= records[i].begun);
    CHECK(records[i].sent == 0);
    CHECK(records[i].peer == -1);
  }
  CHECK(ring.begun() == 10);
}

TEST_CASE("an operation under way is never overwritten, however many come after it") {
  OperationRing ring(4);
  OperationRing::Slot* old = ring.begin(call_of(1), 1);
  old->stamp();
  old->expect(100, 200);
  old->set_moved(10, 20);
  old->set_peer(7);
  for (std::uint64_t seq = 2; seq <= 100; ++seq)
    ring.end(ring.begin(call_of(seq), seq), OperationState::kFinished);
  const auto records = ring.read();
  REQUIRE(records.size() == 4);
  CHECK(records[0].seq == 1);
  CHECK(records[0].state == OperationState::kStarted);
  CHECK(records[0].ended == 0);
  CHECK(records[0].sent == 10);
  CHECK(records[0].to_receive == 200);
  CHECK(records[0].peer == 7);
  CHECK(records[3].seq == 100);
}

TEST_CASE("a ring full of operations under way records no more, and nothing breaks") {
  OperationRing ring(2);
  OperationRing::Slot* first = ring.begin(call_of(1), 1);
  OperationRing::Slot* second = ring.begin(call_of(2), 2);
  CHECK(ring.begin(call_of(3), 3) == nullptr);
  ring.end(nullptr, OperationState::kFinished);
  ring.end(first, OperationState::kFailed);
  OperationRing::Slot* fourth = ring.begin(call_of(4), 4);
  REQUIRE(fourth != nullptr);
  ring.end(second, OperationState::kFinished);
  ring.end(fourth, OperationState::kFinished);
  CHECK(ring.read().size() == 2);

  OperationRing none(0);
  CHECK(none.begin(call_of(1), 1) == nullptr);
  CHECK(none.read().empty());
}

TEST_CASE("how many operations have begun never goes back, whatever is still under way") {
  OperationRing ring(1);
  ring.begin(call_of(1), 1);
  std::atomic<bool> is_over{false};
  std::thread writer([&] {
    for (std::uint64_t seq = 2; !is_over; ++seq) ring.begin(call_of(seq), seq);
  });
  bool has_gone_back = false;
  for (std::uint64_t last = 0; last < 1'000'000;) {
    const std::uint64_t begun = ring.begun();
    has_gone_back |= begun < last;
    last = std::max(last, begun);
  }
  is_over = true;
  writer.join();
  CHECK_FALSE(has_gone_back);
}

TEST_CASE("details of the operation before do not show up in the next one's place") {
  OperationRing ring(1);
  OperationRing::Slot* slot = ring.begin(call_of(1), 1);
  slot->set_message(3, 9);
  slot->expect(5, 6);
  ring.end(slot, OperationState::kFinished);
  CHECK(ring.read()[0].tag == 9);
  ring.end(ring.begin(call_of(2), 2), OperationState::kFinished);
  CHECK(ring.read()[0].peer == -1);
  CHECK(ring.read()[0].to_send == 0);
}

TEST_CASE("what is read while operations run belongs together") {
  OperationRing ring(8);
  std::atomic<bool> is_over{false};
  std::thread writer([&] {
    for (std::uint64_t seq = 1; !is_over; ++seq) {
      OperationRing::Slot* slot = ring.begin(call_of(seq), seq, seq);
      slot->stamp();
      slot->expect(seq, seq);
      slot->set_moved(seq, seq);
      ring.end(slot, OperationState::kFinished);
    }
  });
  std::uint64_t last = 0;
  while (last < 20'000) {
    for (const OperationRecord& record : ring.read()) {
      REQUIRE((record.call == call_of(record.seq)));
      REQUIRE(record.queued == record.seq);
      if (record.state == OperationState::kFinished) {
        REQUIRE(record.to_send == record.seq);
        REQUIRE(record.received == record.seq);
        REQUIRE(record.ended >= record.begun);
      }
      last = std::max(last, record.seq);
    }
  }
  is_over = true;
  writer.join();
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
// The quickest of many batches, in nanoseconds a turn: what it costs when nobody disturbs.
template <typename Turn>
double cost_of(const Turn& turn) {
  constexpr int kTurns = 1000;
  double best = 1e9;
  for (int batch = 0; batch < 300; ++batch) {
    const Time begin = Clock::now();
    for (int i = 0; i < kTurns; ++i) turn();
    best = std::min(best, seconds_between(begin, Clock::now()) / kTurns * 1e9);
  }
  return best;
}

TEST_CASE("recording an operation costs no more than looking at the clock three times") {
  OperationRing ring(1024);
  const Call call = call_of(5);
  std::uint64_t seq = 0;
  std::int64_t sum = 0;
  const double recorded =
      cost_of([&] { ring.end(ring.begin(call, ++seq), OperationState::kFinished); });
  const double looked = cost_of([&] { sum += steady_nanos(); });
  CHECK(sum != 0);
  CHECK(recorded < 3 * looked);
}
#endif

TEST_CASE("ticks become steady time") {
  TickScale scale;
  scale.add(TickAnchor::read());
  const Time begin = Clock::now();
  const Ticks ticks = ticks_now();
  const Time end = Clock::now();
  std::this_thread::sleep_until(end + Millis{20});
  scale.add(TickAnchor::read());
  // Reading the clocks may be interrupted, on a busy machine for milliseconds: both ends give way.
  CHECK(scale.nanos(ticks) > steady_nanos(begin) - 5'000'000);
  CHECK(scale.nanos(ticks) < steady_nanos(end) + 5'000'000);
}

TEST_CASE("a scale goes through its anchors, and on beyond them") {
  if (!kTicksAreCycles) return;
  TickScale scale;
  scale.add({1000, 0});
  scale.add({3000, 4'000'000});
  scale.add({4000, 5'000'000});
  CHECK(scale.nanos(1000) == 0);
  CHECK(scale.nanos(2000) == 2'000'000);
  CHECK(scale.nanos(3500) == 4'500'000);
  CHECK(scale.nanos(5000) == 6'000'000);
  CHECK(scale.nanos(0) == -2'000'000);
}

TEST_CASE("a scale that has grown long keeps its range") {
  if (!kTicksAreCycles) return;
  TickScale scale;
  for (std::int64_t i = 0; i < 5000; ++i) scale.add({static_cast<Ticks>(i) * 1000, i * 2'000'000});
  for (const std::int64_t i : {std::int64_t{1}, std::int64_t{2500}, std::int64_t{4999}})
    CHECK(std::abs(scale.nanos(static_cast<Ticks>(i) * 1000) - i * 2'000'000) <= 1);
}

TEST_CASE("JSON has commas between values and nowhere else, and escapes what it must") {
  JsonWriter json;
  json.open_object().member("a", 1).key("b").open_array();
  json.new_line().value("x\"\\\n").new_line().value(true).null();
  json.close_array().key("c").open_array().close_array();
  json.member("d", std::int64_t{-5}).close_object();
  CHECK(json.take() == "{\"a\":1,\"b\":[\n\"x\\\"\\\\\\u000a\",\ntrue,null],\"c\":[],\"d\":-5}\n");
}

TEST_CASE(
    "what operations took is added up by kind from the first reading on, and never goes back") {
  OperationTallies& tallies = OperationTallies::of_process();
  tallies.read();
  const auto of = [&](OpKind op) {
    for (const auto& tally : tallies.read())
      if (tally.op == op) return tally;
    return OperationTallies::Tally{op, 0, 0, 0};
  };
  const auto before = of(OpKind::kAllReduce);
  const auto other = of(OpKind::kScatter);
  OperationRing ring(2);
  for (std::uint64_t seq = 1; seq <= 3; ++seq) {
    OperationRing::Slot* slot = ring.begin(call_of(10), seq);
    CHECK(OperationRing::stamps_at_once());
    slot->stamp();
    const Ticks begun = ticks_now();
    while (ticks_now() - begun < 100'000) {
    }
    ring.end(slot, seq == 2 ? OperationState::kFailed : OperationState::kFinished);
  }
  const auto after = of(OpKind::kAllReduce);
  CHECK(after.operations == before.operations + 3);
  CHECK(after.bytes == before.bytes + 3 * 10 * sizeof(float));
  CHECK(after.nanos > before.nanos);
  CHECK(of(OpKind::kAllReduce).nanos == after.nanos);
  CHECK(of(OpKind::kScatter).operations == other.operations);
}

}  // namespace
}  // namespace gradring::testing::record_test
