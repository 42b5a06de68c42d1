// A frame from a client that may be anybody's: a shard answers it or refuses it with ProtocolError,
// what it refuses leaves no trace, and its journal makes the same shard again.
#include "base/error.h"
#include "fuzz/target.h"
#include "ps/shard/shard_state.h"
#include "support/ps/shard_rig.h"
#include "wire/ps_frames.h"

using namespace gradring;

namespace {

constexpr std::uint64_t kMostFloats = 1u << 16;

// Two tables and a round that is open, and whose frame comes next is known.
testing::Guest prepare(testing::ShardRig& rig) {
  testing::Guest guest = rig.enter(0);
  ps::TableSpec dense = testing::sum_table("dense", 1);
  dense.kind = ps::TableKind::kDense;
  dense.count = 5;
  rig.ask(guest, testing::make_table(testing::sum_table("t", 2)));
  rig.ask(guest, testing::make_table(dense));
  rig.ask(guest, testing::clock(7, 0, {2, true, 1}));
  rig.ask(guest, testing::push("t", {1, 2}, {1, 2, 3, 4}));
  return guest;
}

// A table of many floats is no nonsense, only slow.
bool is_huge(const ps::Frame& frame) {
  if (frame.header.type != wire::PsType::kMakeTable) return false;
  try {
    Bytes payload = frame.payload;
    return ps::parse_change(frame.header, payload).spec.count > kMostFloats;
  } catch (const ProtocolError&) {
    return false;
  }
}

ps::RowMeta row(std::uint64_t id) {
  ps::RowMeta meta;
  meta.id = id;
  meta.version = 4;
  meta.score = 2;
  return meta;
}

std::vector<std::byte> wire_bytes(const ps::Frame& frame) {
  wire::PsHeader header = frame.header;
  header.payload_bytes = frame.payload.size();
  const auto head = wire::encode(header);
  std::vector<std::byte> bytes(head.begin(), head.end());
  bytes.insert(bytes.end(), frame.payload.begin(), frame.payload.end());
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), byte_count);
  if (bytes.size() < wire::kPsHeaderBytes) return 0;
  testing::ShardRig rig;
  const testing::Guest guest = prepare(rig);
  const std::size_t records = rig.journal.records.size();
  try {
    ps::Frame frame;
    frame.header = wire::decode_ps_header(bytes.first<wire::kPsHeaderBytes>());
    ps::put_bytes(frame.payload, bytes.subspan(wire::kPsHeaderBytes));
    if (is_huge(frame)) return 0;
    const bool is_change = wire::is_numbered(frame.header.type);
    rig.send_frame(guest, std::move(frame));
    rig.tick_after(Millis{60'000});
    testing::ShardRig again;
    again.replay(rig.journal.records);
    fuzz::require(again.journal.records.size() == rig.journal.records.size(),
                  "a journal is replayed as it was written");
    if (is_change)
      fuzz::require(again.snapshot() == rig.snapshot(), "a replayed journal makes the same shard");
  } catch (const ProtocolError&) {
    fuzz::require(rig.journal.records.size() == records, "what is refused leaves no trace");
  }
  return 0;
}

std::vector<std::vector<std::byte>> fuzz::examples() {
  const wire::Gate gate{7, 0, 10, true};
  const testing::PushWishes in_round{.returns_rows = true, .round = wire::Round{7, 0}};
  testing::Request stats;
  stats.header.type = wire::PsType::kStats;
  const std::vector<testing::Request> requests{
      testing::make_table(testing::sum_table("u", 3)),
      testing::push("t", {1, 9}, {1, 2, 3, 4}),
      testing::push("t", {1, 9}, {1, 2, 3, 4}, in_round),
      testing::push_dense("dense", {1, 2, 3, 4, 5}),
      testing::push_dense("dense", {1, 2, 3, 4, 5}, in_round),
      testing::clock(7, 1, {2, true, 0.5}),
      testing::clock(8, 1, {3, false, 1}),
      testing::leave(7),
      testing::tick(3),
      testing::shrink("t", 1.5F, 2),
      testing::shrink("", 0.5F, 0),
      testing::set_rule("t", {}),
      testing::write_rows("t", {row(2), row(9)}, {1, 2, 3, 4}, 7),
      testing::write_dense("dense", 3, {1, 2, 3, 4, 5}),
      testing::pull("t", {1, 2, 3}, gate),
      testing::pull_dense("dense", gate),
      testing::pull_changed("t", 1, 10),
      testing::freeze(4, Millis{10}),
      testing::advance(4, Millis{10}, {{0, 1, 9, {9}}}),
      testing::cut(4, "{}"),
      testing::thaw(4),
      testing::load(4, "{}"),
      testing::job(4),
      testing::read_rows("t", 10),
      testing::read_rows("dense", 0),
      stats};
  std::vector<std::vector<std::byte>> found;
  for (const testing::Request& request : requests) {
    testing::ShardRig rig;
    testing::Guest guest = prepare(rig);
    found.push_back(wire_bytes(rig.frame_of(guest, request)));
  }
  return found;
}
