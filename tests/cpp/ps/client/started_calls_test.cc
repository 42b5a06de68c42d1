// How much a client lets be under way that nobody waits for.
#include <doctest/doctest.h>

#include <memory>
#include <thread>
#include <vector>

#include "ps/client/client.h"
#include "ps/client/plain_call.h"
#include "ps/client/row_calls.h"
#include "support/ps/requests.h"
#include "support/ps/service.h"

namespace gradring::testing::started_calls_test {

namespace {

using namespace gradring::ps;

constexpr std::uint64_t kBytes = 1000;  // Of one call's arrays.
const std::vector<std::uint64_t> kIds = ids_of(20, 20);
const std::vector<float> kOnes(kIds.size() * 8, 1.0f);

// A client with room for the arrays of one call, and shard 1, which acknowledges nothing while it
// is frozen.
struct Slow {
  Service service{2, 1};
  std::unique_ptr<Client> client;
  std::unique_ptr<Client> saver = service.connect(100);
  std::shared_ptr<RemoteTable> table;

  Slow() {
    ClientOptions options;
    options.servers = service.addresses;
    options.credentials = {kServiceSecret};
    options.started_bytes = kBytes * 3 / 2;
    client = std::make_unique<Client>(options);
    table = make_table(*client, counts(8));
  }
  static void tell(Client& by, std::uint32_t shard, const Request& request) {
    const auto call = std::make_shared<PlainCall>("a request");
    call->add(shard, request.header, request.rest);
    by.run(call, kServiceTimeout);
  }
  void take_all_room(Millis timeout = kServiceTimeout) const {
    tell(*saver, 1, freeze(1, Millis{60'000}));
    push(timeout);
  }
  void go_on() const {
    thaw_shard_1();
    client->flush(kServiceTimeout);
  }
  void thaw_shard_1() const { tell(*saver, 1, thaw(1)); }
  void push(Millis timeout, std::uint64_t bytes = kBytes, bool goes_along = false) const {
    const auto call = std::make_shared<PushCall>(
        std::vector<PushItem>{{table, kIds, kOnes.data(), nullptr, {}}}, PushOptions{});
    call->note_array_bytes(bytes);
    if (goes_along) call->go_along();
    client->start(call, timeout);
  }
};

}  // namespace

TEST_CASE("a push that finds no room beside those of a slow server says so, and is not sent") {
  const Slow slow;
  slow.take_all_room();
  Slow::tell(*slow.client, 0, gradring::testing::pull("counts", {}));  // It answers in order.
  std::string text;
  try {
    slow.push(Millis{20});
  } catch (const TimedOut& error) {
    text = error.what();
  }
  CHECK(text.find("no room for its 1000 bytes") != std::string::npos);
  CHECK(text.find("(1, with 1000 bytes)") != std::string::npos);
  CHECK(text.find("shard 1 (" + slow.service.addresses[1]) != std::string::npos);
  CHECK(text.find("shard 0") == std::string::npos);
  slow.go_on();
  CHECK(all_are(pull(*slow.client, slow.table, kIds), 1.0f));
}

TEST_CASE("a push is not sent where the others have made room by timing out as it would itself") {
  constexpr Millis kTimeout{250};
  const Slow slow;
  slow.take_all_room(kTimeout);
  CHECK_THROWS_WITH_AS(slow.push(kTimeout), doctest::Contains("nothing of it was sent"), TimedOut);
  slow.push(kServiceTimeout);               // There is room now.
  CHECK_THROWS_AS(slow.go_on(), TimedOut);  // Of the first one, which was sent.
  slow.client->flush(kServiceTimeout);
  CHECK(all_are(pull(*slow.client, slow.table, kIds), 2.0f));
}

TEST_CASE("a push that has more patience than those under way goes in when they time out") {
  const Slow slow;
  slow.take_all_room(Millis{50});
  slow.push(kServiceTimeout);
  CHECK_THROWS_AS(slow.go_on(), TimedOut);
  slow.client->flush(kServiceTimeout);
  CHECK(all_are(pull(*slow.client, slow.table, kIds), 2.0f));
}

TEST_CASE("a push that waits for room goes in once there is some, whatever its own size") {
  const Slow slow;
  slow.take_all_room();
  std::thread other([&] { slow.push(kServiceTimeout, 5 * kBytes); });
  slow.thaw_shard_1();
  other.join();
  slow.push(kServiceTimeout);
  slow.client->flush(kServiceTimeout);
  CHECK(all_are(pull(*slow.client, slow.table, kIds), 3.0f));
}

TEST_CASE("the rest of a push of several tables goes along where its first part was let in") {
  const Slow slow;
  slow.take_all_room();
  slow.push(kServiceTimeout, kBytes, true);
  CHECK_THROWS_AS(slow.push(Millis{20}), TimedOut);
  slow.go_on();
  CHECK(all_are(pull(*slow.client, slow.table, kIds), 2.0f));
}

TEST_CASE("a hint that finds no room is given up at once, however long it may take otherwise") {
  const Slow slow;
  slow.take_all_room();
  std::vector<float> rows(kOnes.size());
  const auto hint = std::make_shared<PullCall>(
      std::vector<PullItem>{{slow.table, kIds, rows.data()}}, PullOptions{});
  hint->note_array_bytes(kBytes);
  hint->make_hint();
  CHECK_THROWS_AS(slow.client->start(hint, Millis{3'600'000}), TimedOut);
  slow.go_on();
}

TEST_CASE("pulls that wait at a gate take no room: the next push may be what opens it") {
  const Slow slow;
  const auto say_clock = [&](std::uint64_t to) {
    for (const std::uint32_t shard : {0u, 1u})
      Slow::tell(*slow.client, shard, gradring::testing::clock(5, to, {0, false, 1}));
  };
  say_clock(0);
  std::vector<float> rows(kOnes.size());
  const auto gated = std::make_shared<PullCall>(
      std::vector<PullItem>{{slow.table, kIds, rows.data()}},
      PullOptions{wire::RowCodec::kFloat32, wire::Gate{5, 3, 60'000, false}});
  gated->note_array_bytes(5 * kBytes);
  slow.client->start(gated, kServiceTimeout);
  slow.push(kServiceTimeout);
  say_clock(3);
  slow.client->wait(gated, kServiceTimeout);
  CHECK(all_are(rows, 1.0f));
}

}  // namespace gradring::testing::started_calls_test
