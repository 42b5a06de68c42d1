// Messages and operation headers: decode is the inverse of encode, and bytes that make no sense are
// refused with ProtocolError, whatever they are.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <random>
#include <string>

#include "base/config.h"
#include "base/error.h"
#include "wire/messages.h"
#include "wire/op_header.h"

namespace gradring::wire::wire_test {
namespace {

Member some_member(Rank rank) {
  return {rank, "[fe80::1]:41822", std::string("name\0with zero", 14), "", 1000, ~std::uint32_t{0}};
}

CallState some_state(std::uint64_t seed) {
  CallState state;
  state.communicator = seed * 0x0101010101010101u;
  state.seq = std::numeric_limits<std::uint64_t>::max() - seed;
  state.in_progress = seed % 2 == 0;
  state.call = {static_cast<OpKind>(seed % kOpKindCount),
                static_cast<DType>(seed % kDTypeCount),
                static_cast<ReduceOp>(seed % kReduceOpCount),
                static_cast<std::uint8_t>(seed),
                static_cast<Rank>(seed) - 1,
                seed << 40,
                ~seed};
  state.members_hash = seed << 56;
  state.made_by = std::string(seed % 3, 'x');
  state.before.assign(seed % (kCallsBefore + 1), state.call);
  return state;
}

// One of each kind, with values at the edges of their ranges.
std::vector<Message> all_messages() {
  Welcome welcome;
  for (std::size_t i = 0; i < welcome.session.size(); ++i)
    welcome.session[i] = static_cast<std::byte>(255 - i);
  for (Rank rank = 0; rank < 40; ++rank) welcome.members.push_back(some_member(rank));
  welcome.costs.tcp = LinkCosts{1.5, 2.5, 1e-9, 0};
  Heartbeat beat;
  for (std::uint64_t i = 0; i < 256; ++i) beat.calls.push_back(some_state(i));
  return {
      Join{4, some_member(3), TransportMode::kTcp},
      welcome,
      Refused{"two processes were started as rank 3", true},
      Heartbeat{},
      beat,
      Lost{-1, false, ""},
      Lost{std::numeric_limits<Rank>::max(), true, std::string(limits::kTextBytes, 'x')},
      Abort{~std::uint64_t{0}, 7, 2, {ErrorKind::kInterrupted, -1, "text"}},
      Bye{},
      ShrinkRequest{9, {0, 1, 2, 5}},
      ShrinkReply{9, {}},
      Left{9, 2, {0, 2, 5}},
      ShrinkWait{9, 20, {1, 5}},
      Doubt{3, "rank 0 sent no heartbeat"},
      Invitation{3, 4, 41822, TransportMode::kShm, "host", 5, 6, 7},
      Grown{true},
  };
}

// Messages have no operator==; equal encodings of all fields are as good.
bool is_same(const Message& a, const Message& b) {
  return a.index() == b.index() && encode(a) == encode(b);
}

TEST_CASE("every message comes back as it was") {
  for (const Message& message : all_messages()) {
    CAPTURE(message.index());
    CHECK(is_same(decode_message(encode(message)), message));
  }
}

TEST_CASE("a decoded message has the fields that were encoded") {
  const Message abort = decode_message(
      encode(Message{Abort{5, 6, 7, {ErrorKind::kPeerLost, 8, std::string("a\0b", 3)}}}));
  REQUIRE(std::holds_alternative<Abort>(abort));
  CHECK(std::get<Abort>(abort).communicator == 5);
  CHECK(std::get<Abort>(abort).seq == 6);
  CHECK(std::get<Abort>(abort).origin == 7);
  CHECK(std::get<Abort>(abort).failure.kind == ErrorKind::kPeerLost);
  CHECK(std::get<Abort>(abort).failure.rank == 8);
  CHECK(std::get<Abort>(abort).failure.text == std::string("a\0b", 3));

  const Message beat = decode_message(encode(Message{Heartbeat{{some_state(4)}}}));
  REQUIRE(std::get<Heartbeat>(beat).calls.size() == 1);
  CHECK(std::get<Heartbeat>(beat).calls[0].call == some_state(4).call);
  CHECK(std::get<Heartbeat>(beat).calls[0].seq == some_state(4).seq);
  CHECK(std::get<Heartbeat>(beat).calls[0].in_progress);
  CHECK(std::get<Heartbeat>(beat).calls[0].members_hash == some_state(4).members_hash);
  CHECK(std::get<Heartbeat>(beat).calls[0].made_by == some_state(4).made_by);
}

TEST_CASE("a message cut anywhere is refused, and so is one with more behind it") {
  for (const Message& message : all_messages()) {
    const std::vector<std::byte> whole = encode(message);
    CAPTURE(message.index());
    // Memory of exactly this size: a read beyond it is found by the address sanitizer.
    for (std::size_t bytes = 0; bytes < whole.size(); bytes += bytes < 300 ? 1 : 97) {
      const std::vector<std::byte> part(whole.begin(),
                                        whole.begin() + static_cast<std::ptrdiff_t>(bytes));
      CHECK_THROWS_AS(decode_message(part), ProtocolError);
    }
    std::vector<std::byte> longer = whole;
    longer.push_back(std::byte{0});
    CHECK_THROWS_AS(decode_message(longer), ProtocolError);
  }
}

TEST_CASE("an unknown kind of message and an unknown value of an enum are refused") {
  std::vector<std::byte> bye = encode(Message{Bye{}});
  bye[0] = std::byte{std::variant_size_v<Message>};
  CHECK_THROWS_AS(decode_message(bye), ProtocolError);
  bye[0] = std::byte{255};
  CHECK_THROWS_AS(decode_message(bye), ProtocolError);

  std::vector<std::byte> abort = encode(Message{Abort{1, 1, 1, {ErrorKind::kTimedOut, -1, ""}}});
  abort[1 + 8 + 8 + 4] = std::byte{200};  // Behind type, communicator, seq and origin: the kind.
  CHECK_THROWS_AS(decode_message(abort), ProtocolError);
}

TEST_CASE("a count over its limit is refused before memory is taken for it") {
  struct Lie {
    Message message;
    std::size_t at;  // Of the count.
  };
  const Lie lies[] = {
      {Welcome{}, 1 + 16},       {Refused{}, 1},         {Heartbeat{}, 1},
      {ShrinkRequest{}, 1 + 8},  {ShrinkReply{}, 1 + 8}, {Left{}, 1 + 8 + 4},
      {ShrinkWait{}, 1 + 8 + 4},
  };
  for (const Lie& lie : lies) {
    CAPTURE(lie.message.index());
    for (const std::uint32_t count : {limits::kWorldSize + 1, 0x7fffffffu, 0xffffffffu}) {
      std::vector<std::byte> bytes = encode(lie.message);
      std::memcpy(&bytes[lie.at], &count, sizeof count);
      CHECK_THROWS_AS(decode_message(bytes), ProtocolError);
    }
  }
}

TEST_CASE("a welcome with costs that no planner can compare by is refused") {
  for (const double latency : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                               std::numeric_limits<double>::infinity()}) {
    Welcome welcome;
    welcome.costs.shared_memory = LinkCosts{latency, 1, 1, 1};
    CAPTURE(latency);
    CHECK_THROWS_AS(decode_message(encode(Message{welcome})), ProtocolError);
  }
}

TEST_CASE("an invitation to a rank, a port or for a time that cannot be is refused") {
  const Invitation sound{3, 4, 41822, TransportMode::kAuto, "host", 5, 6, 7};
  std::vector<Invitation> lies(6, sound);
  lies[0].rank = -1;
  lies[1].rank = 4;
  lies[2].world_size = limits::kWorldSize + 1;
  lies[3].port = 65536;
  lies[4].patience_ms = limits::kLongestMillis + 1;
  lies[5].heartbeat_timeout_ms = ~std::uint64_t{0};
  CHECK_NOTHROW(decode_message(encode(Message{sound})));
  for (const Invitation& lie : lies)
    CHECK_THROWS_AS(decode_message(encode(Message{lie})), ProtocolError);
}

TEST_CASE("texts longer than the limit are cut when they are sent") {
  const std::string longest(limits::kTextBytes, 'y');
  const Message message = decode_message(encode(Message{Refused{longest + "more", false}}));
  CHECK(std::get<Refused>(message).text == longest);
}

OpHeader some_header() {
  OpHeader header;
  header.call = some_state(8).call;
  header.seq = 1234567890123u;
  header.tag = -5;
  header.bytes = std::uint64_t{5} << 32;
  return header;
}

TEST_CASE("an operation header comes back as it was") {
  const OpHeader header = decode_op_header(encode(some_header()));
  CHECK(header.call == some_header().call);
  CHECK(header.seq == some_header().seq);
  CHECK(header.tag == some_header().tag);
  CHECK(header.bytes == some_header().bytes);
}

TEST_CASE("an operation header of another protocol, version or vocabulary is refused") {
  const auto refuses = [](std::size_t at, std::uint8_t value) {
    OpHeaderBytes bytes = encode(some_header());
    bytes[at] = static_cast<std::byte>(value);
    CAPTURE(at);
    CHECK_THROWS_AS(decode_op_header(bytes), ProtocolError);
  };
  refuses(0, 0);
  refuses(3, 0xff);
  refuses(4, 2);               // Version.
  refuses(5, kOpKindCount);    // Operation.
  refuses(6, kDTypeCount);     // Element type.
  refuses(7, kReduceOpCount);  // Operator.
  refuses(5, 0xff);
}

TEST_CASE("no bytes at all do anything but decode or throw ProtocolError") {
  std::mt19937_64 random(1);
  std::vector<std::vector<std::byte>> encoded;
  for (const Message& message : all_messages()) encoded.push_back(encode(message));
  int understood = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> bytes = encoded[random() % encoded.size()];
    for (std::uint64_t left = 1 + random() % 4; left > 0; --left)
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 1));
    try {
      const Message message = decode_message(bytes);
      CHECK(encode(message).size() == bytes.size());
      ++understood;
    } catch (const ProtocolError&) {
    }
  }
  CHECK(understood > 0);
  CHECK(understood < 20'000);
}

}  // namespace
}  // namespace gradring::wire::wire_test
