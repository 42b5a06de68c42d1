// The parameter server's drivers with real threads, sockets and shared memory.
#include "ps/server/server.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>

#include <ctime>
#include <memory>
#include <new>
#include <thread>

#include "base/config.h"
#include "ps/client/client.h"
#include "ps/client/cut.h"
#include "ps/client/plain_call.h"
#include "ps/client/row_calls.h"
#include "support/ps/service.h"
#include "transport/joining/handshake.h"
#include "transport/links/socket.h"

namespace gradring::testing::server_test {

namespace {

using namespace gradring::ps;
using transport::TransportMode;

constexpr Millis kTimeout = kServiceTimeout;
const std::string kSecret = kServiceSecret;

}  // namespace

TEST_CASE("rows go to the servers and come back, over shared memory and over TCP") {
  for (const TransportMode mode : {TransportMode::kShm, TransportMode::kTcp}) {
    for (const std::uint32_t threads : {1u, 2u}) {
      CAPTURE(static_cast<int>(mode));
      const Service service(2, threads);
      const auto client = service.connect(0, mode);
      CHECK(client->shards() == 2 * threads);
      const auto table = make_table(*client, counts(16));
      const auto ids = ids_of(30000, 10000);
      push_ones(*client, table, ids);
      CHECK(all_are(pull(*client, table, ids), 3.0f));
      // Distinct ids in the order of one shard need not be copied; these do.
      CHECK(all_are(pull(*client, table, ids_of(10000, 10000)), 3.0f));
    }
  }
}

TEST_CASE("workers that push at once lose nothing and add nothing") {
  const Service service(2, 1);
  constexpr int kWorkers = 3;
  constexpr int kPushes = 10;
  const auto ids = ids_of(8000, 4000);
  std::vector<std::thread> workers;
  for (std::uint32_t number = 0; number < kWorkers; ++number) {
    workers.emplace_back([&, number] {
      const auto client =
          service.connect(number, number == 0 ? TransportMode::kTcp : TransportMode::kAuto);
      const auto table = make_table(*client, counts(8));
      for (int nth = 0; nth < kPushes; ++nth) push_ones(*client, table, ids);
    });
  }
  for (std::thread& worker : workers) worker.join();
  const auto client = service.connect(100);
  const auto table = make_table(*client, counts(8));
  CHECK(all_are(pull(*client, table, ids), 2.0f * kWorkers * kPushes));
}

TEST_CASE("a busy server notices that a client is gone") {
  const Service service(1, 1);
  const auto client = service.connect(0, TransportMode::kShm);
  const auto table = make_table(*client, counts(1));
  auto other = service.connect(1, TransportMode::kShm);
  make_table(*other, counts(1));
  other.reset();
  // Of a server that is asked all the time.
  const auto is_connected = [&] {
    const auto call = std::make_shared<PlainCall>("stats");
    wire::PsHeader header;
    header.type = wire::PsType::kStats;
    call->add_to_all(client->shards(), header);
    client->run(call, kTimeout);
    const std::string text = decode_text(call->answers()[0].payload);
    const std::size_t at = text.find("\"client\":1,");
    REQUIRE(at != std::string::npos);
    return text.find("\"connected\":true", at) < text.find('}', at);
  };
  const Time deadline = Clock::now() + Millis{5000};
  while (is_connected() && Clock::now() < deadline) continue;
  CHECK_FALSE(is_connected());
}

TEST_CASE("asynchronous calls go on by themselves, beside blocking ones of other threads") {
  const Service service(1, 2);
  const auto client = service.connect(0);
  const auto table = make_table(*client, counts(8));
  const auto ids = ids_of(20000, 20000);
  const std::vector<float> ones(ids.size() * 8, 1.0f);
  std::vector<std::shared_ptr<ps::Call>> started;
  for (int nth = 0; nth < 5; ++nth) {
    started.push_back(std::make_shared<PushCall>(
        std::vector<PushItem>{{table, ids, ones.data(), nullptr, {}}}, PushOptions{}));
    client->start(started.back(), kTimeout);
  }
  std::thread other([&] {
    for (int nth = 0; nth < 5; ++nth) push_ones(*client, table, ids);
  });
  other.join();
  client->flush(kTimeout);
  for (const auto& call : started) {
    CHECK(call->is_done());
    client->wait(call, kTimeout);
  }
  CHECK(all_are(pull(*client, table, ids), 10.0f));
}

TEST_CASE("who does not know the secret is refused") {
  const Service service(1, 1);
  ClientOptions options;
  options.servers = service.addresses;
  options.credentials = {"another one"};
  options.timeout = Millis{2000};
  CHECK_THROWS_AS(Client{options}, AuthError);
  // The others are not disturbed.
  const auto client = service.connect(0);
  push_ones(*client, make_table(*client, counts(4)), {1, 2, 3});
}

TEST_CASE("servers that are named in the wrong order or number are refused") {
  const Service service(2, 1);
  ClientOptions options;
  options.credentials = {kSecret};
  options.timeout = Millis{2000};
  options.servers = {service.addresses[1], service.addresses[0]};
  CHECK_THROWS_AS(Client{options}, Mismatch);
  options.servers = {service.addresses[0]};
  CHECK_THROWS_AS(Client{options}, Mismatch);
}

TEST_CASE("nobody listens: the error names the address and the time") {
  ClientOptions options;
  options.credentials = {kSecret};
  options.timeout = Millis{100};
  {
    const Service gone(1, 1);
    options.servers = gone.addresses;
  }
  CHECK_THROWS_WITH_AS(Client{options}, doctest::Contains(options.servers[0].c_str()), PeerLost);
}

TEST_CASE("a frame that is too long, or nonsense, ends its connection and no other") {
  const Service service(1, 1);
  const auto client = service.connect(0);
  const auto table = make_table(*client, counts(4));
  for (const bool is_too_long : {true, false}) {
    const Time deadline = Clock::now() + Millis{5000};
    std::string why;
    transport::Connection fd =
        transport::connect_tcp(transport::parse_host_port(service.addresses[0]), deadline, why);
    REQUIRE(fd);
    transport::shake_hands(fd, {kSecret}, {transport::Purpose::kParameters, 0, -1, 0, 0, {}},
                           deadline);
    wire::PsHeader header;
    header.payload_bytes = is_too_long ? limits::kPsPayloadBytes + 1 : 12;
    wire::PsHeaderBytes bytes = wire::encode(header);
    if (!is_too_long) bytes[0] = std::byte{0};
    fd.send_all(bytes, deadline);
    std::byte none{};
    CHECK_THROWS_AS(fd.recv_all(std::span(&none, 1), deadline), ProtocolError);
  }
  push_ones(*client, table, {1, 2, 3});
  CHECK(all_are(pull(*client, table, {1, 2, 3}), 1.0f));
}

TEST_CASE("a server started again on its port without its state is an error, not a hang") {
  for (const TransportMode mode : {TransportMode::kShm, TransportMode::kTcp}) {
    Service service(1, 1);
    const auto client = service.connect(0, mode);
    const auto table = make_table(*client, counts(4));
    push_ones(*client, table, {1, 2, 3});
    const int port = transport::parse_host_port(service.addresses[0]).port;
    service.servers[0].reset();
    ServerOptions options;
    options.port = port;
    options.credentials = {kSecret};
    service.servers[0] = std::make_unique<Server>(options);
    CHECK_THROWS_WITH_AS(push_ones(*client, table, {4}), doctest::Contains("lost its state"),
                         PeerLost);
    // A new connection starts afresh.
    const auto fresh = service.connect(0, mode);
    const auto again = make_table(*fresh, counts(4));
    push_ones(*fresh, again, {1});
    CHECK(all_are(pull(*fresh, again, {1}), 1.0f));
  }
}

TEST_CASE("a server that is gone ends a call at its deadline, with the reason") {
  Service service(1, 1);
  const auto client = service.connect(0);
  const auto table = make_table(*client, counts(4));
  service.servers[0].reset();
  const auto pull = std::make_shared<PlainCall>("stats");
  wire::PsHeader header;
  header.type = wire::PsType::kStats;
  pull->add_to_all(client->shards(), header);
  CHECK_THROWS_WITH_AS(client->run(pull, Millis{300}), doctest::Contains("refused"), TimedOut);
  CHECK_FALSE(client->is_closed());
}

TEST_CASE("a server that takes connections and says nothing keeps nobody from the others") {
  Service service(2, 1, TransportMode::kTcp);
  const auto client = service.connect(0, TransportMode::kTcp);
  const auto table = make_table(*client, counts(4));
  std::uint64_t id = 0;
  while (shard_of(id, 2) != 0) ++id;
  const auto address = transport::parse_host_port(service.addresses[1]);
  service.servers[1].reset();
  transport::Fd mute = transport::listen_tcp(address.host, address.port, 8);
  const auto unanswered = std::make_shared<PlainCall>("stats");
  wire::PsHeader header;
  header.type = wire::PsType::kStats;
  unanswered->add(1, header);
  client->start(unanswered, kTimeout);
  pollfd knock{mute.get(), POLLIN, 0};
  REQUIRE(::poll(&knock, 1, static_cast<int>(kTimeout.count())) == 1);
  transport::Fd taken = transport::accept_one(mute.get());
  CHECK(all_are(pull(*client, table, {id}), 0.0f));
  // It still tries to talk to the mute one, so the pull did not have to wait for the end of that.
  pollfd hang_up{taken.get(), POLLRDHUP, 0};
  CHECK(::poll(&hang_up, 1, 0) == 0);
  CHECK_FALSE(unanswered->is_done());
  taken.reset();
  mute.reset();
  client->close();
}

// There is no memory to begin it.
class Oversized final : public ps::Call {
 public:
  Oversized() : ps::Call("oversized") {
    parts_.resize(1);
    parts_[0].header.type = wire::PsType::kStats;
  }
  bool may_wait() const override { throw std::bad_alloc(); }
  void take(std::size_t, const wire::PsHeader&, std::span<const std::byte>) override {}
};

TEST_CASE("a call that there is no memory for fails, and those that were posted with it go on") {
  const Service service(1, 1);
  const auto client = service.connect(0);
  const auto table = make_table(*client, counts(4));
  const auto ids = ids_of(1000, 1000);
  const std::vector<float> ones(ids.size() * 4, 1.0f);
  for (int nth = 0; nth < 20; ++nth) {
    const auto oversized = std::make_shared<Oversized>();
    const auto push = std::make_shared<PushCall>(
        std::vector<PushItem>{{table, ids, ones.data(), nullptr, {}}}, PushOptions{});
    client->start(oversized, kTimeout);
    client->start(push, kTimeout);
    client->wait(push, kTimeout);
    CHECK_THROWS_WITH_AS(client->wait(oversized, kTimeout), doctest::Contains("no memory"),
                         InvalidArgument);
  }
  client->flush(kTimeout);
  CHECK(all_are(pull(*client, table, ids), 20.0f));
}

TEST_CASE("closing ends what is under way") {
  Service service(1, 1);
  const auto client = service.connect(0);
  const auto table = make_table(*client, counts(4));
  // A gate that nobody opens.
  const std::vector<std::uint64_t> ids{1};
  std::vector<float> rows(4);
  const auto clock = std::make_shared<PlainCall>("clock");
  wire::PsHeader header;
  header.type = wire::PsType::kClock;
  header.a = 5;
  Bytes head;
  put(head, ClockPayload{2, false, 1});
  clock->add_to_all(client->shards(), header, head);
  client->run(clock, kTimeout);
  const auto waiting = std::make_shared<PullCall>(
      std::vector<PullItem>{{table, ids, rows.data()}},
      PullOptions{wire::RowCodec::kFloat32, wire::Gate{5, 3, 60000, false}});
  client->start(waiting, kTimeout);
  CHECK_FALSE(waiting->is_done());
  client->close();
  CHECK(waiting->is_done());
  CHECK(waiting->failure().kind == ErrorKind::kClosed);
  CHECK_THROWS_AS(push_ones(*client, table, {1}), Closed);
}

TEST_CASE("a client that leaves more behind than is held for it keeps no processor busy") {
  const Service service(1, 1);
  auto client = service.connect(0, TransportMode::kShm);
  const auto table = make_table(*client, counts(1));
  const auto clock = std::make_shared<PlainCall>("clock");
  wire::PsHeader header;
  header.type = wire::PsType::kClock;
  header.a = 5;
  Bytes head;
  put(head, ClockPayload{2, false, 1});
  clock->add_to_all(client->shards(), header, head);
  client->run(clock, kTimeout);
  // At a gate that nobody opens.
  const auto ids = ids_of(limits::kPsHeldBytes / sizeof(std::uint64_t) * 2 / 3, 1u << 30);
  std::vector<float> rows(ids.size());
  for (int nth = 0; nth < 2; ++nth)
    client->start(std::make_shared<PullCall>(
                      std::vector<PullItem>{{table, ids, rows.data()}},
                      PullOptions{wire::RowCodec::kFloat32, wire::Gate{5, 3, 60000, false}}),
                  kTimeout);
  const auto other = service.connect(1);
  const auto others = make_table(*other, counts(1));
  for (int nth = 0; nth < 200; ++nth) pull(*other, others, {1});  // It reads both meanwhile.
  client.reset();
  for (int nth = 0; nth < 20; ++nth) pull(*other, others, {1});
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(Millis{200});
  CHECK(std::clock() - before < CLOCKS_PER_SEC / 10);
}

TEST_CASE("a cut reaches every shard's owner, and its files end the service") {
  const Service service(2, 1);
  const auto client = service.connect(0);
  const auto table = make_table(*client, counts(4));
  push_ones(*client, table, ids_of(1000, 1000));
  CutRequest request;
  request.jobs = {"first", "second"};
  const Cut cut = take_cut(*client, request);
  CHECK(cut.stamps.size() == 2);
  CHECK(cut.stamps[0].contains(table->id));
  push_ones(*client, table, {1});  // Training goes on.
  for (std::uint32_t shard = 0; shard < 2; ++shard) {
    const auto found = service.servers[shard]->next_job(kTimeout);
    REQUIRE(found);
    CHECK(found->first == shard);
    CHECK(found->second.cut == cut.number);
    CHECK(found->second.text == request.jobs[shard]);
    std::size_t bytes = 0;
    for (bool more = true; more;) {
      ps::SnapshotBytes piece;
      service.servers[shard]->ask(shard, [&](Shard& owner, std::vector<Answer>&) {
        more = owner.next_snapshot_piece(cut.number, 1 << 16, piece);
      });
      bytes += piece.size();
    }
    CHECK(bytes > 0);
    service.servers[shard]->ask(
        shard, [&](Shard& owner, std::vector<Answer>&) { owner.end_snapshot(cut.number); });
    service.servers[shard]->finish_job(shard, cut.number, str("written ", shard), {});
  }
  CHECK(await_job(*client, cut.number, kTimeout) ==
        std::vector<std::string>{"written 0", "written 1"});
}

}  // namespace gradring::testing::server_test
