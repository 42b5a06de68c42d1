// What processes say to each other changes only together with the version of the wire: two builds
// that would misunderstand each other find that out in the first bytes.
#include "wire/version.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <sstream>
#include <string>
#include <vector>

#include "collectives/engine/compressed_layout.h"
#include "collectives/flat/flat_memory.h"
#include "collectives/plan/choose.h"
#include "kernels/codec.h"
#include "ps/protocol/payloads.h"
#include "ps/protocol/row_codec.h"
#include "transport/joining/handshake.h"
#include "transport/links/shm_link.h"
#include "wire/messages.h"
#include "wire/op_header.h"
#include "wire/ps_frames.h"

namespace gradring::wire::version_test {
namespace {

// What a version says: hashes of samples of it.
struct Spoken {
  std::uint8_t version;
  std::uint64_t handshake;
  std::uint64_t control;
  std::uint64_t links;
  std::uint64_t parameters;
  std::uint64_t plans;
  std::uint64_t compressed;
};

// Where a hash differs, what this build says has changed: count kWireVersion up, also between two
// releases, and write down here what the test found.
constexpr Spoken kSpoken = {7,
                            0xf2cbfb42053af2b3u,
                            0xbc91f53b07c22e43u,
                            0x5deecbd168dba599u,
                            0xe0eca4fc61b3c48u,
                            0xa50afeb6d2346b24u,
                            0xd890ebbb5df5cefbu};

// FNV-1a.
class Hash {
 public:
  template <typename Container>
  void bytes(const Container& all) {
    for (const std::byte byte : std::as_bytes(std::span(all))) {
      value_ ^= std::to_integer<std::uint64_t>(byte);
      value_ *= 0x100000001b3u;
    }
  }
  void number(std::uint64_t value) { bytes(std::array{value}); }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

// Every field of the samples has a value of its own, lest two change places unseen.
Call a_call() {
  return {OpKind::kAllToAll, DType::kFloat16, ReduceOp::kMax, 5, 6, 7, 8};
}

Member a_member() {
  return {1, "address", "unix", "host", 2, 3, "4", 5, 6};
}

std::uint64_t handshake() {
  const std::string secret = "secret";
  transport::Intro intro{transport::Purpose::kSegment, 1, 2, 3, 4, {}, 5};
  intro.session.fill(std::byte{6});
  transport::ClientHandshake client(secret, {}, intro);
  transport::ServerHandshake server(secret, {});
  Hash hash;
  // The version itself says nothing about what it counts.
  std::vector<std::byte> said = client.hello();
  transport::ServerHandshake other(secret, {});
  other.want_encryption();
  const std::vector<std::byte> refusal = other.receive(said);
  hash.bytes(std::span(refusal).subspan(sizeof(BuildBytes)));
  hash.bytes(std::span(said).subspan(sizeof(BuildBytes)));
  while (!client.is_done()) {
    const std::vector<std::byte> answer = server.receive(said);
    hash.bytes(answer);
    said = client.receive(answer);
    hash.bytes(said);
  }
  return hash.value();
}

std::uint64_t control() {
  Welcome welcome{{}, {a_member(), a_member()}, {}, {}};
  welcome.session.fill(std::byte{1});
  welcome.costs.tcp = LinkCosts{1, 2, 3, 4};
  welcome.meeting_point = "door";
  const CallState state{1, 2, true, a_call(), 3, "subgroup", {a_call()}};
  const Message messages[] = {
      Join{1, a_member(), TransportMode::kTcp},
      welcome,
      Refused{"text", true},
      Heartbeat{{state}},
      Lost{1, true, "text"},
      Abort{1, 2, 3, {ErrorKind::kTimedOut, 4, "text"}},
      Bye{},
      ShrinkRequest{1, {2, 3}},
      ShrinkReply{1, {2, 3}},
      Left{1, 2, {3, 4}},
      ShrinkWait{1, 2, {3, 4}},
      Doubt{1, "text"},
      Invitation{1, 2, 3, TransportMode::kTcp, "host", 4, 5, 6},
      Grown{true},
  };
  CHECK(std::size(messages) == std::variant_size_v<Message>);  // One of each.
  Hash hash;
  for (const Message& message : messages) hash.bytes(encode(message));
  return hash.value();
}

std::uint64_t links() {
  Hash hash;
  hash.bytes(encode(OpHeader{a_call(), 1, 2, 3}));
  for (const std::size_t count : {kOpKindCount, kDTypeCount, kReduceOpCount, kTransportModeCount})
    hash.number(count);
  hash.number(transport::ShmLink::kMemoryBytes);
  for (const Rank ranks : {2, 5, 64}) hash.number(collectives::FlatMemory::bytes(ranks));
  return hash.value();
}

ps::TableSpec a_spec() {
  ps::TableSpec spec;
  spec.name = "table";
  spec.dim = 2;
  spec.count = 3;
  spec.rule.kind = kernels::RuleKind::kAdam;
  spec.init = {ps::InitKind::kUniform, 4, 5};
  spec.seed = 6;
  spec.entry = {7, 0.5f};
  spec.unseen_ticks = 8;
  spec.score_decay = 0.25f;
  spec.slot_shift = 32;
  spec.slots = {{9, 10, {11, 0.75f}, 12}};
  return spec;
}

void hash_rows(Hash& hash) {
  const std::vector<float> rows{1, -2, 3, 0.5f};
  for (std::uint8_t codec = 0; codec < kRowCodecCount; ++codec) {
    const auto as = static_cast<RowCodec>(codec);
    std::vector<std::byte> bytes(ps::encoded_rows_bytes(as, 2, 2));
    ps::encode_rows(as, 2, 2, rows.data(), nullptr, bytes.data());
    hash.bytes(bytes);
  }
}

std::uint64_t parameters() {
  Hash hash;
  hash.bytes(encode(PsHeader{PsType::kSetRule, 1, RowCodec::kInt8, 2, 3, 4, 5, 6, 7, 8, 9}));
  hash.number(kLastPsRequest);
  hash.number(static_cast<std::uint64_t>(PsType::kError));
  hash.bytes(ps::encode(ps::Hello{1, 2}));
  hash.bytes(ps::encode(ps::Welcome{1, 2, "host", "unix"}));
  hash.bytes(ps::encode(std::vector<ps::Position>{{1, 2, 3, {4, 5}}}));
  Bytes payload;
  ps::put(payload, Tail{1, 2});
  ps::put(payload, Gate{1, 2, 3, true});
  ps::put(payload, Round{1, 2});
  ps::put(payload, ps::Outcome{1, 2, 3, 4, {5}});
  ps::put(payload, ps::ClockPayload{1, true, 2});
  ps::put(payload, a_spec());
  ps::put(payload, a_spec().rule);
  hash.bytes(payload);
  hash_rows(hash);
  return hash.value();
}

// How many bytes each rank sends to each other one: where two ranks differ in that, both wait.
void hash_plan(Hash& hash, collectives::Request request, Algorithm algorithm) {
  for (request.rank = 0; request.rank < request.world_size; ++request.rank) {
    std::vector<std::uint64_t> sent(static_cast<std::size_t>(request.world_size));
    for (const auto& action : collectives::make_plan(request, algorithm).actions)
      if (action.kind == collectives::ActionKind::kSend)
        sent[static_cast<std::size_t>(action.peer)] += action.bytes;
    hash.bytes(sent);
  }
}

std::uint64_t plans() {
  Hash hash;
  for (const Rank world_size : {2, 3, 8}) {
    for (std::size_t op = 0; op <= static_cast<std::size_t>(OpKind::kAllToAll); ++op) {
      for (const std::uint64_t count : {1u, 1000u, 1000000u}) {
        collectives::Request request;
        request.op = static_cast<OpKind>(op);
        request.world_size = world_size;
        request.count = count;
        if (request.op == OpKind::kAllToAll)
          request.counts = request.recv_counts =
              std::vector(static_cast<std::size_t>(world_size), count);
        request.order = collectives::order_for(request.op, world_size, 4 * count, request.dtype);
        const auto costs = collectives::loopback_costs();
        hash.number(static_cast<std::uint64_t>(collectives::choose(request, costs)));
        for (const Algorithm algorithm : collectives::algorithms_for(request))
          hash_plan(hash, request, algorithm);
      }
    }
  }
  return hash.value();
}

// Parts of a compressed sum, of two blocks of kInt8 and a little, with equals for kTopK.
std::uint64_t compressed() {
  Hash hash;
  for (std::size_t kind = 0; kind < kernels::kCodecKindCount; ++kind) {
    collectives::Compressed what;
    what.codec = {static_cast<kernels::CodecKind>(kind), 0.0625};
    const double divisor = 2;
    what.divisor_at = &divisor;
    what.count = 3 * 520;
    const collectives::CompressedLayout layout(what, 1, 3);
    std::vector<std::byte> part(layout.bytes(1));
    layout.write_header(part.data());
    std::vector<float> values(layout.count(1));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(static_cast<int>(i * 37 % 509) - 254) * 1.03125f;
    kernels::encode(what.codec, values.data(), nullptr, values.size(),
                    part.data() + collectives::CompressedLayout::kHeaderBytes);
    hash.bytes(part);
    for (const auto& operation : {layout.exchange(), layout.spread()}) {
      hash.number(static_cast<std::uint64_t>(operation.request.op));
      hash.bytes(operation.request.counts);
      hash.bytes(operation.request.recv_counts);
    }
  }
  return hash.value();
}

// As kSpoken has them.
std::string in_hex(std::initializer_list<std::uint64_t> hashes) {
  std::ostringstream out;
  for (const std::uint64_t hash : hashes) out << "0x" << std::hex << hash << "u, ";
  return out.str();
}

TEST_CASE("what builds say to each other changes only with the version of the wire") {
  INFO("Count wire::kWireVersion up, then write what is found into kSpoken.");
  INFO(in_hex({handshake(), control(), links(), parameters(), plans(), compressed()}));
  CHECK(kWireVersion == kSpoken.version);
  CHECK(handshake() == kSpoken.handshake);
  CHECK(control() == kSpoken.control);
  CHECK(links() == kSpoken.links);
  CHECK(parameters() == kSpoken.parameters);
  CHECK(plans() == kSpoken.plans);
  CHECK(compressed() == kSpoken.compressed);
}

TEST_CASE("a build comes back as it was, and says what it is") {
  CHECK(decode_build(encode(this_build())) == this_build());
  CHECK(this_build().wire == kWireVersion);
  CHECK(describe({7, {1, 20, 3}}) == "version 7 of the wire (Gradring 1.20.3)");
  CHECK_FALSE(decode_build(std::as_bytes(std::span("GET / HTTP/1.1"))));
}

TEST_CASE("the first version, which told no release, is known") {
  const auto first = decode_build(std::as_bytes(std::span("GRADRNG1")));
  REQUIRE(first);
  CHECK(first->wire == 1);
  CHECK(describe(*first) == "version 1 of the wire (an early Gradring)");
}

}  // namespace
}  // namespace gradring::wire::version_test
