#include <doctest/doctest.h>

#include <new>
#include <random>

#include "base/config.h"
#include "ps/tables/partition.h"
#include "support/ps/net.h"
#include "support/ps/requests.h"

namespace gradring::testing::client_core_test {

namespace {

using namespace gradring::ps;
using gradring::testing::counting_table;
using gradring::testing::PsNet;

// A batch with repeated ids whose gradients are all ones: every row counts its pushes.
struct Batch {
  std::vector<std::uint64_t> ids;
  std::vector<float> ones;
};

Batch batch_of(std::size_t count, std::uint64_t distinct, std::uint32_t dim) {
  Batch batch;
  for (std::size_t at = 0; at < count; ++at) batch.ids.push_back(mix_id(at % distinct));
  batch.ones.assign(count * dim, 1.0f);
  return batch;
}

std::shared_ptr<PushCall> push_of(const std::shared_ptr<RemoteTable>& table, const Batch& batch) {
  return std::make_shared<PushCall>(
      std::vector<PushItem>{{table, batch.ids, batch.ones.data(), nullptr, {}}}, PushOptions{});
}

std::vector<float> pulled(PsNet& net, const std::shared_ptr<RemoteTable>& table,
                          const std::vector<std::uint64_t>& ids) {
  std::vector<float> rows(ids.size() * table->spec.dim, -1.0f);
  const auto call =
      std::make_shared<PullCall>(std::vector<PullItem>{{table, ids, rows.data()}}, PullOptions{});
  net.run(call);
  REQUIRE(call->is_done());
  if (call->failure()) call->failure().raise();
  return rows;
}

// Every id of the batch was counted exactly `pushes` times for each of its occurrences.
void check_counts(PsNet& net, const std::shared_ptr<RemoteTable>& table, const Batch& batch,
                  std::size_t distinct, int pushes) {
  const std::vector<float> rows = pulled(net, table, batch.ids);
  const auto expected =
      static_cast<float>(batch.ids.size() / distinct) * static_cast<float>(pushes);
  bool is_exact = true;
  for (const float value : rows) is_exact &= value == expected;
  CHECK(is_exact);
}

}  // namespace

TEST_CASE("a push and a pull over several shards find every row once") {
  PsNet net(3);
  const auto table = net.make_table(counting_table("counts", 4));
  const Batch batch = batch_of(6000, 2000, 4);
  const auto push = push_of(table, batch);
  net.run(push);
  CHECK_FALSE(push->failure());
  CHECK(push->report().rows == 2000);
  check_counts(net, table, batch, 2000, 1);
}

TEST_CASE("frames that come twice are done once") {
  PsNet net(2);
  const auto table = net.make_table(counting_table("counts", 8));
  net.requests = [](std::uint32_t, const wire::PsHeader& header) {
    return header.type == wire::PsType::kPush ? 3 : 1;
  };
  net.answers = [](std::uint32_t, const wire::PsHeader&) { return 2; };
  const Batch batch = batch_of(40000, 20000, 8);
  for (int nth = 0; nth < 3; ++nth) {
    const auto push = push_of(table, batch);
    net.run(push);
    CHECK_FALSE(push->failure());
  }
  check_counts(net, table, batch, 20000, 3);
}

TEST_CASE("connections that break at any frame cost nothing but time") {
  for (const std::uint32_t seed : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u}) {
    CAPTURE(seed);
    PsNet net(3);
    const auto table = net.make_table(counting_table("counts", 8));
    std::mt19937 random(seed);
    const auto chance = [&random](std::uint32_t percent) { return random() % 100 < percent; };
    net.requests = [&](std::uint32_t, const wire::PsHeader&) {
      return chance(5) ? 0 : chance(5) ? 2 : 1;
    };
    net.answers = net.requests;
    const Batch batch = batch_of(60000, 30000, 8);
    std::vector<std::shared_ptr<PushCall>> pushes;
    for (int nth = 0; nth < 4; ++nth) {
      pushes.push_back(push_of(table, batch));
      net.submit(pushes.back());
    }
    net.pass(Millis{3000});
    for (const auto& push : pushes) {
      REQUIRE(push->is_done());
      CHECK_FALSE(push->failure());
    }
    net.requests = net.answers = nullptr;
    check_counts(net, table, batch, 30000, 4);
  }
}

TEST_CASE("a request that overtakes another is sent again in its place") {
  PsNet net(1);
  const auto table = net.make_table(counting_table("counts", 8));
  // The first push of all vanishes on a connection that goes on, as no real one does.
  bool is_lost = false;
  std::uint64_t out_of_order = 0;
  net.answers = [&](std::uint32_t, const wire::PsHeader& header) {
    out_of_order += header.type == wire::PsType::kOutOfOrder ? 1 : 0;
    return 1;
  };
  net.requests = [&](std::uint32_t, const wire::PsHeader& header) {
    if (header.type != wire::PsType::kPush || is_lost) return 1;
    is_lost = true;
    return -1;
  };
  const Batch batch = batch_of(100000, 50000, 8);
  const auto push = push_of(table, batch);
  net.run(push);
  CHECK_FALSE(push->failure());
  CHECK(out_of_order > 0);
  check_counts(net, table, batch, 50000, 1);
}

TEST_CASE("a server that stays away ends a push at its deadline, and names what is open") {
  PsNet net(2);
  const auto table = net.make_table(counting_table("counts", 8));
  const Batch batch = batch_of(20000, 10000, 8);
  net.close(1, true);
  const auto push = push_of(table, batch);
  net.run(push);
  REQUIRE(push->is_done());
  CHECK(push->failure().kind == ErrorKind::kTimedOut);
  CAPTURE(push->failure().text);
  CHECK(push->failure().text.find("push to table 'counts'") != std::string::npos);
  CHECK(push->failure().text.find("shard 1 (server-1:1)") != std::string::npos);
  CHECK(push->failure().text.find("connection refused") != std::string::npos);
  CHECK(push->failure().text.find("shard 0") == std::string::npos);
  CHECK(push->failure().text.find(" rows") != std::string::npos);

  SUBCASE("and what was given up leaves no gap: later pushes are done") {
    net.close(1, false);
    net.pass(Millis{2000});
    const auto again = push_of(table, batch);
    net.run(again);
    CHECK_FALSE(again->failure());
    // Shard 0 has both, shard 1 only the second one.
    const std::vector<float> rows = pulled(net, table, batch.ids);
    bool is_exact = true;
    for (std::size_t at = 0; at < batch.ids.size(); ++at)
      is_exact &= rows[at * 8] == (shard_of(batch.ids[at], 2) == 0 ? 4.0f : 2.0f);
    CHECK(is_exact);
  }
}

TEST_CASE("a slow server that goes on answering is not given up") {
  PsNet net(1);
  const auto table = net.make_table(counting_table("counts", 8));
  const Batch batch = batch_of(100000, 100000, 8);
  // The connection breaks after every few answers: the push takes longer than its timeout in all.
  std::uint64_t answered = 0;
  net.answers = [&](std::uint32_t, const wire::PsHeader& header) {
    if (header.type != wire::PsType::kDone) return 1;
    return ++answered % 2 == 0 ? 0 : 1;
  };
  const auto push = push_of(table, batch);
  net.run(push);
  REQUIRE(push->is_done());
  CHECK_FALSE(push->failure());
  net.answers = nullptr;
  check_counts(net, table, batch, 100000, 1);
}

TEST_CASE("a server that comes back without its state is an error that says so, at once") {
  PsNet net(2);
  const auto table = net.make_table(counting_table("counts", 8));
  net.restart_empty(1);
  const Batch batch = batch_of(1000, 1000, 8);
  const auto push = push_of(table, batch);
  net.submit(push);
  net.pass(Millis{50});
  REQUIRE(push->is_done());
  CHECK(push->failure().kind == ErrorKind::kPeerLost);
  CHECK(push->failure().text.find("has lost its state") != std::string::npos);
}

TEST_CASE(
    "a server that knows more changes than the client has sent is a mismatch, not a done push") {
  PsNet net(1);
  const auto table = net.make_table(counting_table("counts", 8));
  // Another copy of this very process, as of an image that was started twice.
  std::vector<Answer> answers;
  Frame hello;
  hello.payload = encode(Hello{7, 1});
  net.disconnect(0);
  net.shard(0).connected(1000, net.now());
  net.shard(0).receive(1000, std::move(hello), net.now(), answers);
  const testing::Request made = testing::nothing();
  Frame change{made.header, {}};
  change.header.seq = net.core().session(0).last_seq() + 1;
  put(change.payload, wire::Tail{change.header.seq});
  net.shard(0).receive(1000, std::move(change), net.now(), answers);
  REQUIRE(answers.size() == 2);
  CHECK(answers.back().frame.header.type == wire::PsType::kDone);
  net.shard(0).disconnected(1000, net.now());
  const Batch batch = batch_of(10, 10, 8);
  const auto push = push_of(table, batch);
  net.submit(push);
  net.pass(Millis{50});
  REQUIRE(push->is_done());
  CHECK(push->failure().kind == ErrorKind::kMismatch);
  CHECK(push->failure().text.find("client number 7") != std::string::npos);
}

TEST_CASE("a client that does nothing comes back to a shard it had reached, and only to that") {
  PsNet net(2);
  const auto table = net.make_table(counting_table("counts", 4));
  net.disconnect(0);
  net.pass(Millis{100});
  CHECK(net.core().session(0).is_connected());

  PsNet unused(1);
  unused.pass(Millis{100});
  CHECK_FALSE(unused.core().session(0).is_connected());
}

TEST_CASE("an error of one table does not touch another call") {
  PsNet net(2);
  const auto table = net.make_table(counting_table("counts", 8));
  const auto unknown =
      std::make_shared<RemoteTable>(counting_table("nobody made this", 8), net.shards());
  const Batch batch = batch_of(1000, 1000, 8);
  const auto wrong = push_of(unknown, batch);
  const auto right = push_of(table, batch);
  net.submit(wrong);
  net.submit(right);
  net.pass(Millis{50});
  REQUIRE(wrong->is_done());
  CHECK(wrong->failure().kind == ErrorKind::kInvalidArgument);
  REQUIRE(right->is_done());
  CHECK_FALSE(right->failure());
}

TEST_CASE("a client that was replaced hears it") {
  PsNet net(1);
  const auto table = net.make_table(counting_table("counts", 8));
  Hello later{7, 2};
  std::vector<Answer> answers;
  net.shard(0).connected(1000, net.now());
  Frame hello;
  hello.payload = encode(later);
  hello.header.payload_bytes = hello.payload.size();
  net.shard(0).receive(1000, std::move(hello), net.now(), answers);
  net.disconnect(0);
  const Batch batch = batch_of(10, 10, 8);
  const auto push = push_of(table, batch);
  net.submit(push);
  net.pass(Millis{50});
  REQUIRE(push->is_done());
  CHECK(push->failure().kind == ErrorKind::kClosed);
}

TEST_CASE("pulls that are given up make room for others") {
  PsNet net(1);
  const auto table = net.make_table(counting_table("counts", 1));
  const Batch batch = batch_of(1 << 17, 1 << 17, 1);
  std::vector<float> rows(batch.ids.size());
  // None is answered; together they are more than may be under way at once.
  net.requests = [](std::uint32_t, const wire::PsHeader&) { return -1; };
  std::size_t bytes = 0;
  for (; bytes <= 2 * limits::kPsFlightBytes; bytes += batch.ids.size() * sizeof(std::uint64_t)) {
    const auto pull = std::make_shared<PullCall>(
        std::vector<PullItem>{{table, batch.ids, rows.data()}}, PullOptions{});
    net.submit(pull);
    net.settle();
    net.core().cancel(*pull, {ErrorKind::kInterrupted, -1, "Ctrl-C"});
  }
  net.requests = nullptr;
  const std::uint64_t before = net.frames_sent();
  CHECK(pulled(net, table, {1, 2}) == std::vector<float>(2, 0.0f));
  CHECK(net.frames_sent() == before + 1);  // Without a new connection.
}

// Two changes, of which there is memory for one.
class Oversized final : public Call {
 public:
  explicit Oversized(const RemoteTable& table) : Call("oversized") {
    parts_.resize(2);
    for (Part& part : parts_) {
      part.header.type = wire::PsType::kTick;
      table.address(part.header);
    }
  }
  bool may_wait() const override {
    if (++asked_ == 2) throw std::bad_alloc();
    return false;
  }
  void take(std::size_t, const wire::PsHeader&, std::span<const std::byte>) override {}

 private:
  mutable int asked_ = 0;
};

TEST_CASE("a call that there is no memory for leaves no gap, and nothing of it is sent") {
  PsNet net(1);
  const auto table = net.make_table(counting_table("counts", 8));
  const std::uint64_t frames = net.frames_sent();
  const auto oversized = std::make_shared<Oversized>(*table);
  CHECK_THROWS_AS(net.submit(oversized), std::bad_alloc);
  net.settle();
  CHECK(net.frames_sent() == frames);
  const Batch batch = batch_of(10, 10, 8);
  const auto push = push_of(table, batch);
  net.run(push);
  REQUIRE(push->is_done());
  CHECK_FALSE(push->failure());
  CHECK(net.frames_sent() == frames + 1);
  check_counts(net, table, batch, 10, 1);
}

TEST_CASE("what is under way is bounded") {
  PsNet net(1);
  const auto table = net.make_table(counting_table("counts", 64));
  std::uint64_t bytes = 0;
  net.requests = [&](std::uint32_t, const wire::PsHeader& header) {
    if (header.type == wire::PsType::kPush) bytes += header.payload_bytes;
    return -1;  // Nothing arrives, so nothing is answered.
  };
  const Batch batch = batch_of(200000, 200000, 64);
  const auto push = push_of(table, batch);
  net.submit(push);
  net.settle();
  CHECK(bytes >= limits::kPsFlightBytes);
  CHECK(bytes < limits::kPsFlightBytes + limits::kPsPartBytes);
  net.requests = nullptr;
  net.core().cancel(*push, {ErrorKind::kClosed, -1, "enough"});
  CHECK(push->failure().kind == ErrorKind::kClosed);
}

}  // namespace gradring::testing::client_core_test
