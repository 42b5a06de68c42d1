// What a client makes of waiting: at a gate, for a server that says nothing, and for what it has
// given up meanwhile.
#include <doctest/doctest.h>

#include <algorithm>

#include "base/config.h"
#include "support/no_memory.h"
#include "support/ps/net.h"
#include "support/ps/requests.h"

namespace gradring::testing::waiting_test {

namespace {

using namespace gradring::ps;
using gradring::testing::counting_table;
using gradring::testing::PsNet;

const std::vector<std::uint64_t> kOne{1};

std::shared_ptr<PushCall> push_of(const std::shared_ptr<RemoteTable>& table,
                                  const std::vector<std::uint64_t>& ids,
                                  const std::vector<float>& gradients) {
  return std::make_shared<PushCall>(
      std::vector<PushItem>{{table, ids, gradients.data(), nullptr, {}}}, PushOptions{});
}

// The only worker that a bound waits for.
void say_clock(PsNet& net, std::uint64_t to) {
  const auto clock = std::make_shared<PlainCall>("clock");
  wire::PsHeader header;
  header.type = wire::PsType::kClock;
  header.a = 5;
  header.b = to;
  Bytes head;
  put(head, ClockPayload{0, false, 1});
  clock->add(0, header, head);
  net.run(clock);
  CHECK_FALSE(clock->failure());
}

std::shared_ptr<PullCall> gated_pull(const std::shared_ptr<RemoteTable>& table,
                                     std::vector<float>& rows) {
  return std::make_shared<PullCall>(
      std::vector<PullItem>{{table, kOne, rows.data()}},
      PullOptions{wire::RowCodec::kFloat32, wire::Gate{5, 3, 60000, false}});
}

}  // namespace

TEST_CASE("of a call that is given up nothing more is sent, whatever became of its request") {
  ClientCoreOptions options;
  options.hello = {7, 1};
  options.addresses = {"server-0:1"};
  ClientCore core(options);
  Session& session = core.session(0);
  const Time now = Time{} + Millis{1000};
  const auto table = std::make_shared<RemoteTable>(counting_table("counts", 8), 1);
  const std::vector<std::uint64_t> ids(1000, 3);
  const std::vector<float> ones(8000, 1.0f);
  const auto first = push_of(table, ids, ones);
  const auto second = push_of(table, ids, ones);
  core.submit(first, Millis{1000}, now);
  core.submit(second, Millis{1000}, now);
  session.connected(now);
  const auto send = [&](std::size_t most) {
    std::size_t bytes = 0;
    for (const auto span : session.output(now).spans) bytes += span.size();
    session.sent(std::min(bytes, most), now);
  };
  send(SIZE_MAX);  // The hello: request 1.
  wire::PsHeader answer;
  answer.type = wire::PsType::kWelcome;
  answer.request = 1;
  core.receive(0, answer, encode(Welcome{}), now);
  send(SIZE_MAX);
  send(100);
  // The first one was lost: everything goes out again, once what is half sent is through.
  answer.type = wire::PsType::kOutOfOrder;
  answer.request = 2;
  core.receive(0, answer, {}, now);
  CHECK_FALSE(session.output(now).is_empty());
  core.cancel(*second, {ErrorKind::kInterrupted, -1, "Ctrl-C"});
  CHECK(session.output(now).is_empty());
  CHECK(session.wants_hang_up());
}

TEST_CASE("to give calls up takes no memory, and the others go on") {
  PsNet net(2);
  const auto table = net.make_table(counting_table("counts", 8));
  std::vector<std::uint64_t> ids(20'000);
  for (std::size_t at = 0; at < ids.size(); ++at) ids[at] = at;
  const std::vector<float> ones(ids.size() * 8, 1.0f);
  std::vector<float> rows(ids.size() * 8);
  net.requests = [](std::uint32_t, const wire::PsHeader&) { return -1; };
  const auto pull =
      std::make_shared<PullCall>(std::vector<PullItem>{{table, ids, rows.data()}}, PullOptions{});
  const auto push = push_of(table, ids, ones);
  net.submit(pull);
  net.submit(push);
  net.settle();
  Failure failures[2];
  for (Failure& failure : failures) failure = {ErrorKind::kInterrupted, -1, std::string(100, 'x')};
  {
    const NoHeap none(0);
    net.core().cancel(*pull, std::move(failures[0]));
    net.core().cancel(*push, std::move(failures[1]));
  }
  CHECK(pull->failure().kind == ErrorKind::kInterrupted);
  CHECK(push->failure().text.starts_with("xxx"));
  net.requests = nullptr;
  for (std::uint32_t shard = 0; shard < 2; ++shard) net.disconnect(shard);
  const auto next = push_of(table, ids, ones);
  net.run(next);
  CHECK_FALSE(next->failure());
  CHECK(next->report().rows == ids.size());
}

TEST_CASE("a client whose pull waits at a gate for long may sleep") {
  PsNet net(1);
  const auto table = net.make_table(counting_table("counts", 2));
  say_clock(net, 0);
  std::vector<float> rows(2);
  const auto pull = gated_pull(table, rows);
  net.submit(pull);
  net.pass(Millis{700});  // Longer than an answer may take that waits for nobody.
  CHECK_FALSE(pull->is_done());
  CHECK(net.core().next_tick() > net.now());
}

TEST_CASE("what waits at a gate keeps nothing else from going on") {
  PsNet net(1);
  const auto table = net.make_table(counting_table("counts", 2));
  say_clock(net, 0);
  std::vector<float> rows(2);
  const auto waiting = gated_pull(table, rows);
  net.submit(waiting);
  const std::vector<float> ones(2, 1.0f);
  for (std::size_t nth = 0; nth < 2 * limits::kPsFlightRequests; ++nth) {
    const auto push = push_of(table, kOne, ones);
    net.run(push);
    REQUIRE_FALSE(push->failure());
  }
  CHECK_FALSE(waiting->is_done());
  say_clock(net, 3);
  CHECK(waiting->is_done());
}

TEST_CASE("more pulls wait at a gate than requests may be under way, and keep nothing from going") {
  PsNet net(1);
  const auto table = net.make_table(counting_table("counts", 2));
  say_clock(net, 0);
  std::vector<float> rows(2);
  std::vector<std::shared_ptr<PullCall>> waiting;
  for (std::size_t nth = 0; nth < limits::kPsFlightRequests + 50; ++nth) {
    waiting.push_back(gated_pull(table, rows));
    net.submit(waiting.back());
  }
  SUBCASE("") {}
  SUBCASE("on a connection that was made anew") {
    net.settle();
    net.disconnect(0);
  }
  SUBCASE("beside some that were given up") {
    net.settle();
    for (std::size_t nth = 0; nth < 10; ++nth)
      net.core().cancel(*waiting[nth], {ErrorKind::kInterrupted, -1, "Ctrl-C"});
  }
  const std::vector<float> ones(2, 1.0f);
  for (std::size_t nth = 0; nth < 2 * limits::kPsFlightRequests; ++nth) {
    const auto push = push_of(table, kOne, ones);
    net.submit(push);
    net.pass(Millis{10});
    REQUIRE(push->is_done());
    REQUIRE_FALSE(push->failure());
  }
  for (const auto& pull : waiting) CHECK((pull->failure() || !pull->is_done()));
  say_clock(net, 3);
  for (const auto& pull : waiting) CHECK(pull->is_done());
}

// More than a shard holds of one client.
std::vector<std::uint64_t> many_ids() {
  std::vector<std::uint64_t> ids(limits::kPsHeldBytes / sizeof(std::uint64_t) * 5 / 4);
  for (std::size_t at = 0; at < ids.size(); ++at) ids[at] = at;
  return ids;
}

TEST_CASE("a pull that waits at a gate keeps nothing from going on, however many ids it has") {
  PsNet net(1);
  const auto table = net.make_table(counting_table("counts", 1));
  say_clock(net, 0);
  const auto ids = many_ids();
  std::vector<float> rows(ids.size(), -1);
  const auto pull = std::make_shared<PullCall>(
      std::vector<PullItem>{{table, ids, rows.data()}},
      PullOptions{wire::RowCodec::kFloat32, wire::Gate{5, 3, 60000, false}});
  net.submit(pull);
  SUBCASE("") {}
  SUBCASE("on a connection that was made anew") {
    net.settle();
    net.disconnect(0);
  }
  const std::vector<float> ones(1, 1.0f);
  const auto push = push_of(table, kOne, ones);
  net.run(push);
  CHECK_FALSE(push->failure());
  CHECK_FALSE(pull->is_done());
  say_clock(net, 3);
  net.settle();
  REQUIRE(pull->is_done());
  CHECK_FALSE(pull->failure());
  CHECK(rows[1] == 1.0f);
  CHECK(std::count(rows.begin(), rows.end(), 0.0f) == std::ptrdiff_t(rows.size()) - 1);
}

TEST_CASE("a pull whose gate stays closed fails at its deadline, however many ids it has") {
  PsNet net(1);
  const auto table = net.make_table(counting_table("counts", 1));
  say_clock(net, 0);
  const auto ids = many_ids();
  std::vector<float> rows(ids.size());
  const auto pull = std::make_shared<PullCall>(
      std::vector<PullItem>{{table, ids, rows.data()}},
      PullOptions{wire::RowCodec::kFloat32, wire::Gate{5, 3, 300, false}});
  net.submit(pull);
  net.pass(Millis{320});
  REQUIRE(pull->is_done());
  CHECK(pull->failure().kind == ErrorKind::kTimedOut);
}

TEST_CASE("pulls that wait at a gate are all told at its deadline, however many they are") {
  PsNet net(1);
  const auto table = net.make_table(counting_table("counts", 2));
  say_clock(net, 0);
  std::vector<float> rows(2);
  std::vector<std::shared_ptr<PullCall>> waiting;
  for (std::size_t nth = 0; nth < 3 * limits::kPsFlightRequests; ++nth) {
    waiting.push_back(std::make_shared<PullCall>(
        std::vector<PullItem>{{table, kOne, rows.data()}},
        PullOptions{wire::RowCodec::kFloat32, wire::Gate{5, 3, 300, false}}));
    net.submit(waiting.back());
  }
  net.pass(Millis{320});
  std::size_t told = 0;
  for (const auto& pull : waiting) told += pull->failure().kind == ErrorKind::kTimedOut ? 1 : 0;
  CHECK(told == waiting.size());
}

TEST_CASE("what else is under way is bounded also beside what waits at a gate") {
  PsNet net(1);
  const auto table = net.make_table(counting_table("counts", 2));
  say_clock(net, 0);
  std::vector<float> rows(2);
  net.requests = [](std::uint32_t, const wire::PsHeader&) { return -1; };
  const auto sent = [&](const auto& make) {
    const std::uint64_t before = net.frames_sent();
    for (std::size_t nth = 0; nth < 2 * limits::kPsFlightRequests; ++nth) net.submit(make());
    net.settle();
    return net.frames_sent() - before;
  };
  CHECK(sent([&] { return gated_pull(table, rows); }) == 2 * limits::kPsFlightRequests);
  const std::vector<float> ones(2, 1.0f);
  CHECK(sent([&] { return push_of(table, kOne, ones); }) == limits::kPsFlightRequests);
}

TEST_CASE(
    "who waits for something outside the tables is not kept waiting by what goes on in them") {
  PsNet net(1);
  const auto table = net.make_table(counting_table("counts", 2));
  say_clock(net, 0);
  const auto request = gradring::testing::pull("counts", {1}, wire::Gate{5, 3, 60000, false});
  const auto waiting = std::make_shared<PlainCall>("a checkpoint's files", true);
  waiting->add(0, request.header, request.rest);
  net.submit(waiting);
  const std::vector<float> ones(2, 1.0f);
  for (Millis passed{0}; passed < 2 * PsNet::kTimeout; passed += Millis{100}) {
    net.run(push_of(table, kOne, ones));
    net.pass(Millis{100});
  }
  REQUIRE(waiting->is_done());
  CHECK(waiting->failure().kind == ErrorKind::kTimedOut);
}

TEST_CASE("a freeze ends however much was given up behind the changes that it holds") {
  PsNet net(1);
  const auto table = net.make_table(counting_table("counts", 1));
  const auto plain = [](const gradring::testing::Request& request) {
    const auto call = std::make_shared<PlainCall>("a checkpoint");
    call->add(0, request.header, request.rest);
    return call;
  };
  net.run(plain(gradring::testing::freeze(1, Millis{60'000})));
  const std::vector<float> ones(1, 1.0f);
  const auto first = push_of(table, kOne, ones);
  net.submit(first);
  // Each wants to see the push, so that the shard holds it; nobody waits for them any more.
  std::vector<std::uint64_t> ids(1 << 17);
  for (std::size_t at = 0; at < ids.size(); ++at) ids[at] = at;
  std::vector<float> rows(ids.size());
  for (std::size_t bytes = 0; bytes <= limits::kPsHeldBytes; bytes += ids.size() * sizeof ids[0]) {
    const auto pull =
        std::make_shared<PullCall>(std::vector<PullItem>{{table, ids, rows.data()}}, PullOptions{});
    net.submit(pull);
    net.settle();
    net.core().cancel(*pull, {ErrorKind::kInterrupted, -1, "Ctrl-C"});
  }
  const auto second = push_of(table, kOne, ones);
  net.submit(second);
  net.settle();
  const auto thaw = plain(gradring::testing::thaw(1));
  net.submit(thaw);
  net.pass(Millis{100});
  REQUIRE(thaw->is_done());
  CHECK_FALSE(thaw->failure());
  for (const auto& push : {first, second}) {
    REQUIRE(push->is_done());
    CHECK_FALSE(push->failure());
  }
  const auto pull =
      std::make_shared<PullCall>(std::vector<PullItem>{{table, kOne, rows.data()}}, PullOptions{});
  net.run(pull);
  CHECK_FALSE(pull->failure());
  CHECK(rows[0] == 2.0f);
}

TEST_CASE("a server that does not greet is asked again on a new connection") {
  PsNet net(1);
  const auto table = net.make_table(counting_table("counts", 2));
  net.disconnect(0);
  bool is_lost = false;
  net.answers = [&](std::uint32_t, const wire::PsHeader& header) {
    if (header.type != wire::PsType::kWelcome || is_lost) return 1;
    is_lost = true;
    return -1;
  };
  const std::vector<float> ones(2, 1.0f);
  const auto push = push_of(table, kOne, ones);
  net.run(push);
  CHECK(is_lost);
  CHECK(push->is_done());
  CHECK_FALSE(push->failure());
}

TEST_CASE("a welcome that comes in pieces, again and again, ends no wait for an answer") {
  Time now{Millis{1000}};
  ClientCore core({{7, 1}, {"server:1"}, Millis{500}});
  const auto call = std::make_shared<PlainCall>("stats");
  wire::PsHeader header;
  header.type = wire::PsType::kStats;
  call->add(0, header);
  core.submit(call, Millis{1000}, now);
  for (int nth = 0; nth < 4; ++nth) {
    core.session(0).connected(now);
    now += Millis{300};
    core.session(0).moved(now);
    core.session(0).disconnected("it hung up", now);
    core.tick(now);
  }
  REQUIRE(call->is_done());
  CHECK(call->failure().kind == ErrorKind::kTimedOut);
}

}  // namespace gradring::testing::waiting_test
