#include "collectives/device/staged_rounds.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace gradring::collectives {
namespace {

struct Span {
  std::uint64_t begin = 0;
  std::uint64_t count = 0;
};

std::uint64_t divided_up(std::uint64_t count, std::uint64_t parts) {
  return count / parts + (count % parts == 0 ? 0 : 1);
}

// Pieces of one length, nearly: none is a crumb that would choose another algorithm.
std::vector<Span> even_cut(std::uint64_t count, std::uint64_t most) {
  const std::uint64_t rounds = std::max<std::uint64_t>(1, divided_up(count, most));
  const std::uint64_t length = std::max<std::uint64_t>(1, divided_up(count, rounds));
  std::vector<Span> spans;
  for (std::uint64_t begin = 0; begin < count; begin += length)
    spans.push_back({begin, std::min(length, count - begin)});
  if (spans.empty()) spans.push_back({});
  return spans;
}

// Every rank's part of the vector.
std::vector<Span> parts_of(const Request& request) {
  const bool is_whole_each = request.op == OpKind::kGather || request.op == OpKind::kScatter;
  std::vector<Span> parts;
  std::uint64_t begin = 0;
  for (Rank rank = 0; rank < request.world_size; ++rank) {
    std::uint64_t count = request.count;
    if (!is_whole_each)
      count = request.counts.empty() ? chunk_begin(request.count, request.world_size, rank + 1) -
                                           chunk_begin(request.count, request.world_size, rank)
                                     : request.counts[static_cast<std::size_t>(rank)];
    parts.push_back({begin, count});
    begin += count;
  }
  return parts;
}

// One piece of every part, side by side in the slot. Where parts are an even cut of the vector, the
// pieces are an even cut of the slot: all of one length, but for the last round's, which keep what
// the parts differ by.
std::vector<std::vector<Piece>> cut_by_parts(const std::vector<Span>& parts,
                                             std::uint64_t slot_count) {
  std::uint64_t longest = 0;
  for (const Span& part : parts) longest = std::max(longest, part.count);
  std::vector<std::vector<Piece>> rounds;
  for (const Span& cut : even_cut(longest, slot_count / parts.size())) {
    std::vector<Piece>& pieces = rounds.emplace_back();
    std::uint64_t slot_at = 0;
    for (const Span& part : parts) {
      const std::uint64_t begin = std::min(cut.begin, part.count);
      const std::uint64_t count = std::min(cut.count, part.count - begin);
      pieces.push_back({part.begin + begin, slot_at, count});
      slot_at += count;
    }
  }
  return rounds;
}

std::uint64_t end_of(const std::vector<Piece>& pieces) {
  return pieces.back().slot_at + pieces.back().count;
}

std::vector<Piece> without_empty(std::vector<Piece> pieces) {
  std::erase_if(pieces, [](const Piece& piece) { return piece.count == 0; });
  return pieces;
}

// all_reduce, reduce, broadcast: every rank has the whole vector.
void set_whole(StagedRound& round, const std::vector<Piece>& pieces) {
  const Request& request = round.request;
  const bool is_root = request.rank == request.root;
  round.request.count = end_of(pieces);
  if (request.op != OpKind::kBroadcast || is_root) round.down = without_empty(pieces);
  if (request.op != OpKind::kReduce || is_root) round.up = without_empty(pieces);
}

// The others: every rank has one part, and all parts lie somewhere, in rank order.
void set_parts(StagedRound& round, const std::vector<Piece>& pieces, std::uint64_t own_begin) {
  Request& request = round.request;
  const bool is_root = request.rank == request.root;
  Piece own = pieces[static_cast<std::size_t>(request.rank)];
  const std::uint64_t own_at = own.slot_at;
  own.device_at -= own_begin;
  const bool is_one_size = request.op == OpKind::kGather || request.op == OpKind::kScatter;
  if (is_one_size) {
    request.count = own.count;
  } else {
    request.counts.clear();
    for (const Piece& piece : pieces) request.counts.push_back(piece.count);
    request.count = end_of(pieces);
  }
  const bool spreads = request.op == OpKind::kReduceScatter || request.op == OpKind::kScatter;
  (spreads ? round.output_at : round.input_at) = own_at;
  const bool has_all = !is_one_size || is_root;
  std::vector<Piece>& whole = spreads ? round.down : round.up;
  std::vector<Piece>& part = spreads ? round.up : round.down;
  if (has_all) whole = without_empty(pieces);
  part = without_empty({own});
}

StagedRound all_to_all(const Request& request) {
  const auto total = [](const std::vector<std::uint64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  };
  // Without counts: rank r gets part r of everybody's vector.
  const std::uint64_t own = chunk_begin(request.count, request.world_size, request.rank + 1) -
                            chunk_begin(request.count, request.world_size, request.rank);
  StagedRound round;
  round.request = request;
  round.output_at = request.counts.empty() ? request.count : total(request.counts);
  const std::uint64_t received = request.recv_counts.empty()
                                     ? own * static_cast<std::uint64_t>(request.world_size)
                                     : total(request.recv_counts);
  round.slot_count = round.output_at + received;
  round.down = without_empty({{0, 0, round.output_at}});
  round.up = without_empty({{0, round.output_at, received}});
  return round;
}

}  // namespace

std::vector<StagedRound> staged_rounds(const Request& request, std::uint64_t slot_count,
                                       std::uint64_t segment_count) {
  GRADRING_ASSERT(slot_count >= static_cast<std::uint64_t>(request.world_size));
  GRADRING_ASSERT(segment_count <= slot_count);
  StagedRound plain;
  plain.request = request;
  if (request.op == OpKind::kBarrier) return {plain};
  if (request.op == OpKind::kAllToAll) return {all_to_all(request)};
  const bool is_whole = request.op == OpKind::kAllReduce || request.op == OpKind::kReduce ||
                        request.op == OpKind::kBroadcast;
  const std::vector<Span> parts = parts_of(request);
  std::vector<std::vector<Piece>> cut;
  if (is_whole && segment_count > 0) {
    for (std::uint64_t begin = 0; begin == 0 || begin < request.count; begin += segment_count)
      cut.push_back({{begin, 0, std::min(segment_count, request.count - begin)}});
  } else if (is_whole && (request.op == OpKind::kBroadcast || request.order != Order::kRing)) {
    for (const Span& span : even_cut(request.count, slot_count))
      cut.push_back({{span.begin, 0, span.count}});
  } else {
    cut = cut_by_parts(parts, slot_count);
  }
  std::vector<StagedRound> rounds;
  for (const std::vector<Piece>& pieces : cut) {
    StagedRound& round = rounds.emplace_back(plain);
    round.slot_count = end_of(pieces);
    if (is_whole)
      set_whole(round, pieces);
    else
      set_parts(round, pieces, parts[static_cast<std::size_t>(request.rank)].begin);
  }
  return rounds;
}

Operation part_of(const Operation& whole, const StagedRound& round, std::byte* slot) {
  const std::size_t item = item_bytes(round.request.dtype);
  Operation part = whole;
  part.request = round.request;
  part.has_order = whole.algorithm != Algorithm::kHierarchical;
  part.input = slot + round.input_at * item;
  part.output = slot + round.output_at * item;
  return part;
}

}  // namespace gradring::collectives
