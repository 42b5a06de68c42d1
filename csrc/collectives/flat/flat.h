// Flat: collectives of ranks on one host through one shared-memory segment. The results have the
// same bits as those of the algorithms that have a plan: the order of additions is the request's.
// Short operations: every rank writes its call and its whole payload into a post, one round of
// flags, and every rank computes what it needs. Long ones: flat_reduce.h and flat_gather.h pass
// pieces through slots, flat_direct.h reads other ranks' memory. Counters go on from one operation
// to the next: nothing is ever reset. Who needs nothing from the others waits for nobody: the root
// of a short broadcast, or of a longer one where ranks share processors, and those who only send in
// a short reduce. They may be kPosts - 1 operations ahead. The calls of two ranks are compared all
// the same: if not in the operation itself, then by the one that starts its next later. A Flat
// belongs to one rank and is driven by one thread at a time, under the communicator's drive lock.
// Several ranks may be threads of one process, each with its own Flat.
#pragma once

#include <cstdint>
#include <vector>

#include "base/processor.h"
#include "collectives/flat/flat_direct.h"
#include "collectives/flat/flat_shape.h"
#include "collectives/flat/flat_side.h"
#include "collectives/flat/flat_ways.h"
#include "collectives/flat/shared_array.h"
#include "collectives/plan/plan.h"

namespace gradring::collectives {

class Flat {
 public:
  static std::size_t memory_bytes(Rank ranks) { return FlatMemory::bytes(ranks); }
  // By the rank that makes the memory, before the others have it. `processors`: of this host.
  static void lay_out(const transport::SharedMemory& memory, Rank ranks, Rank processors,
                      bool core_lines_are_slow = gradring::core_lines_are_slow()) {
    FlatMemory::lay_out(memory, {.shares_processors = ranks > processors ? 1u : 0u,
                                 .core_lines_are_slow = core_lines_are_slow ? 1u : 0u});
  }
  static bool supports(const Request& request);

  // `memory`: the same memory_bytes(ranks) for all of `ranks`, who outlive this, zeroed when they
  // were created, and laid out. `rank`: in there.
  Flat(transport::SharedMemory memory, const transport::Group& ranks, Rank rank);

  // Runs one operation; input and output may be the same memory. Throws Mismatch before anything is
  // reduced if another rank's call or seq differs, PeerLost if a rank left without taking part, and
  // whatever `idle` throws. After a throw the segment is of no more use.
  // `shared`: where input and output lie, when they are one vector in a SharedArray.
  void run(const Request& request, const Call& call, std::uint64_t seq, const std::byte* input,
           std::byte* output, transport::Idle& idle, const SharedArrays::Found& shared = {});

  // The rank of the group that is waited for, or was when run() threw; else -1. Callable from any
  // thread.
  Rank awaited() const { return side_.awaited(); }

  // Whether the last operation that could do without the slots did (flat_direct.h).
  bool reads_directly() const { return was_direct_; }
  // Whether the last long operation went through a little of the slots (flat_ways.h).
  bool stays_cached() const { return side_.stays_cached; }

  // Says that this rank will write nothing more, and wakes who waits for it.
  void leave() { side_.leave(); }

 private:
  void run_short(const Request& request, const Call& call, std::uint64_t seq,
                 const std::byte* input, transport::Idle& idle);
  void run_long(const Request& request, const Call& call, std::uint64_t seq, const std::byte* input,
                std::byte* output, transport::Idle& idle, const SharedArrays::Found& shared);
  void reduce(const Request& request, const std::byte* input, std::byte* output,
              transport::Idle& idle, const SharedArrays::Found& shared);
  void run_gather(const Request& request, const Call& call, std::uint64_t seq,
                  const std::byte* input, std::byte* output, transport::Idle& idle);
  bool lets_root_be_ahead(OpKind op) const;  // Of a long operation.
  void run_ahead(const Request& request, const Call& call, std::uint64_t seq,
                 const std::byte* input, std::byte* output, transport::Idle& idle);
  bool read_others(const Request& request, const std::byte* input, std::byte* output,
                   transport::Idle& idle);
  void gather(const Request& request, const std::byte* input, std::byte* output,
              transport::Idle& idle);
  void choose_way(const Request& request, bool may_read);
  void take_way(FlatWay way);
  FlatWay word_of(Rank rank, std::uint32_t round) const;
  void hear_way(const Request& request);
  void hear_one_behind(const Request& request);
  void post(const Call& call, std::uint64_t seq, const std::byte* payload, std::size_t bytes);
  template <typename About>
  void post_long(const Call& call, std::uint64_t seq, FlatWay way, const About& about);
  void free_post(std::size_t payload, transport::Idle& idle);
  void check_posts(transport::Idle& idle);
  void await_post(Rank peer, transport::Idle& idle);
  void compare_post(Rank peer) const;
  void look_back() const;
  bool all_share(const SharedPlace& place) const;
  void finish_short(const Request& request, const std::byte* input, std::byte* output);

  FlatSide side_;
  FlatShape shape_;
  FlatDirect direct_;
  FlatWays ways_;
  bool has_slots_ = false;              // They were written once.
  bool has_payloads_ = false;           // The same of those that are spread.
  bool was_direct_ = false;             // The last operation that could be.
  FlatWay way_ = FlatWay::kSlots;       // This operation's.
  FlatWay next_way_ = FlatWay::kSlots;  // That this rank would have the next one go.
  std::uint32_t round_ = 0;             // Operations so far; also the last post's flag.
  std::uint32_t in_step_ = 0;  // The last round of which all ranks' posts were compared with ours.
};

}  // namespace gradring::collectives
