// The planners, one function for each pair of operation and algorithm that exists, and the scratch
// slots they share. Included by the planners and by plan.cc, which holds the table of them;
// everybody else calls make_plan. A planner may rely on: world_size >= 2, valid ranks and counts,
// an order that its algorithm can give.
//
// Why no plan can wait in a circle, even over links that hold no byte: every planner lists its
// sends and receives in rounds, a send of round t meets a receive of round t at the peer, and an
// action waits only for earlier rounds.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "collectives/plan/parts.h"
#include "collectives/plan/plan.h"

namespace gradring::collectives {

// A place in scratch that is used again and again: a receive into it must wait for those that used
// it last.
struct Slot {
  Slice at;
  std::array<std::uint32_t, 2> last_users{PlanBuilder::kNothing, PlanBuilder::kNothing};
};

// Columns of a long vector that are under way at once.
inline constexpr Rank kColumnsInFlight = 2;
// How many pieces keep a way busy that is this rank's one of `links`, and no less than `near`,
// which is enough where ways are short.
inline Rank pieces_in_flight(const Request& request, Rank near, Rank links) {
  constexpr Rank kMost = 128;
  return std::max(near, std::min(Rank{request.pieces_on_way} / links, kMost));
}
// A column that is halved is twice what is reduced at once: the first halving leaves half of it.
// Where ways hold more it grows instead of there being more of them, as the next one waits for it
// in every round.
inline std::uint64_t halved_column_bytes(const Request& request) {
  return static_cast<std::uint64_t>(pieces_in_flight(request, kColumnsInFlight, 1)) * kPieceBytes;
}

inline Slice input(std::uint64_t offset_bytes) {
  return {Place::kInput, offset_bytes};
}
inline Slice output(std::uint64_t offset_bytes) {
  return {Place::kOutput, offset_bytes};
}

inline Rank wrap(Rank rank, Rank world_size) {
  return (rank % world_size + world_size) % world_size;
}

// Whether output must stay untouched until every contributing rank has been heard from (see Plan's
// rules).
inline bool agrees_by_data(std::uint64_t bytes) {
  return bytes <= kAgreeByDataBytes;
}

// ring.cc
Plan ring_all_reduce(const Request& request);
Plan ring_reduce_scatter(const Request& request);
Plan ring_reduce(const Request& request);
Plan ring_all_gather(const Request& request);

// doubling.cc
Plan doubling_all_reduce(const Request& request);
Plan doubling_reduce_scatter(const Request& request);
Plan doubling_all_gather(const Request& request);
Plan doubling_barrier(const Request& request);

// halving.cc
Plan halving_all_reduce(const Request& request);

// halving_scatter.cc
Plan halving_reduce_scatter(const Request& request);
Plan halving_reduce(const Request& request);

// direct.cc
Plan direct_all_reduce(const Request& request);
Plan direct_reduce_scatter(const Request& request);
Plan direct_reduce(const Request& request);
Plan direct_all_gather(const Request& request);
Plan direct_all_to_all(const Request& request);

// gather.cc
Plan gather_all_reduce(const Request& request);
Plan gather_reduce(const Request& request);

// rooted.cc
Plan ring_broadcast(const Request& request);
Plan doubling_broadcast(const Request& request);
Plan direct_broadcast(const Request& request);
Plan direct_gather(const Request& request);
Plan direct_scatter(const Request& request);

}  // namespace gradring::collectives
