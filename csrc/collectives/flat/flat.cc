#include "collectives/flat/flat.h"

#include <bit>
#include <utility>

#include "base/copy_bytes.h"
#include "base/error.h"
#include "base/log.h"
#include "base/ticks.h"
#include "collectives/flat/flat_gather.h"
#include "collectives/flat/flat_reduce.h"
#include "transport/membership/group.h"

namespace gradring::collectives {
namespace {

// Up to here everybody reading everything costs less than a second round of flags.
constexpr std::size_t kShortBytes = 32 * 1024;
// Of one rank's part of an all_gather, where the second round saves a copy.
constexpr std::size_t kShortPartBytes = 16 * 1024;
static_assert(kShortBytes <= FlatMemory::kPayloadBytes);
// However far ahead a rank is, what it called is still told when it waits (membership_calls.cc).
static_assert(FlatMemory::kPosts - 1 <= transport::Group::kCallsTold);

// What `rank` writes into its post when the operation is short.
std::size_t payload_bytes(const Request& request, const FlatShape& shape, Rank rank) {
  switch (request.op) {
    case OpKind::kAllGather: return shape.part(rank).bytes;
    case OpKind::kBroadcast: return rank == request.root ? shape.bytes() : 0;
    default: return shape.bytes();
  }
}

void copy_to(std::byte* dst, const std::byte* src, std::size_t bytes) {
  if (dst != src) copy_bytes(dst, src, bytes);
}

FlatWays::Slots slots_of(const FlatSide& side) {
  return {.bytes = FlatMemory::kSlots * side.memory.slot_bytes(),
          .cached_bytes = FlatMemory::kSlots * FlatMemory::kCachedBytes,
          .ranks = static_cast<std::size_t>(side.ranks)};
}

// A watch that stands still while others are waited for.
class Lap {
 public:
  void stop() { took_ += ticks_now() - since_; }
  void go_on() { since_ = ticks_now(); }
  Ticks took() const { return took_; }

 private:
  Ticks since_ = ticks_now();
  Ticks took_ = 0;
};

}  // namespace

bool Flat::supports(const Request& request) {
  return reduces(request.op) || request.op == OpKind::kBarrier ||
         request.op == OpKind::kAllGather || request.op == OpKind::kBroadcast;
}

Flat::Flat(transport::SharedMemory memory, const transport::Group& ranks, Rank rank)
    : side_(std::move(memory), ranks, rank),
      shape_(side_.ranks),
      direct_(side_),
      ways_(side_.memory.shares_processors(), slots_of(side_)) {}

void Flat::run(const Request& request, const Call& call, std::uint64_t seq, const std::byte* input,
               std::byte* output, transport::Idle& idle, const SharedArrays::Found& shared) {
  GRADRING_ASSERT(request.world_size == side_.ranks && request.rank == side_.rank);
  GRADRING_ASSERT(supports(request));
  shape_.set(request);
  const std::size_t largest =
      request.op == OpKind::kAllGather ? shape_.largest_part_bytes() : shape_.bytes();
  const bool is_short =
      largest <=
      (request.op == OpKind::kAllGather && direct_.is_likely() ? kShortPartBytes : kShortBytes);
  const std::size_t own = is_short ? payload_bytes(request, shape_, side_.rank) : sizeof(LongPost);
  if (side_.ranks > 1) free_post(own, idle);
  ++round_;
  if (side_.ranks == 1) {
    copy_to(output, input, shape_.bytes());
  } else if (is_short) {
    if (side_.memory.spreads(largest) && !std::exchange(has_payloads_, true))
      side_.memory.take_payloads();
    run_short(request, call, seq, input, idle);
    finish_short(request, input, output);
  } else {
    // An array that all ranks share needs none.
    if (!shared.array && !std::exchange(has_slots_, true)) side_.memory.take_slots();
    run_long(request, call, seq, input, output, idle, shared);
  }
}

void Flat::run_long(const Request& request, const Call& call, std::uint64_t seq,
                    const std::byte* input, std::byte* output, transport::Idle& idle,
                    const SharedArrays::Found& shared) {
  if (lets_root_be_ahead(request.op)) return run_ahead(request, call, seq, input, output, idle);
  if (!reduces(request.op)) return run_gather(request, call, seq, input, output, idle);
  choose_way(request, false);
  // What lies in shared memory on this rank may not on another: that is known from the posts.
  post_long(call, seq, next_way_, shared.place);
  try {
    reduce(request, input, output, idle, shared);
  } catch (...) {
    if (shared.array && !shared.array->detach(shared.place.offset, shape_.bytes()))
      log_warning(side_.in_world(side_.rank),
                  str(describe(call, seq),
                      " failed, and there is no memory to take its array out of what the ranks "
                      "share: one that was frozen in that call may still write to it"));
    throw;
  }
}

// After this rank's post.
void Flat::reduce(const Request& request, const std::byte* input, std::byte* output,
                  transport::Idle& idle, const SharedArrays::Found& shared) {
  Lap lap;
  FlatReduce slots(side_, shape_, request, input, output);
  if (!shared.array) slots.begin(idle);
  lap.stop();
  check_posts(idle);
  if (shared.array && all_share(shared.place))
    return shared.array->reduce_in_place(side_, shape_, shared.place.offset, idle);
  lap.go_on();
  slots.finish(idle);
  lap.stop();
  ways_.note(request.op, shape_.bytes(), way_, lap.took());
  hear_way(request);
}

void Flat::run_gather(const Request& request, const Call& call, std::uint64_t seq,
                      const std::byte* input, std::byte* output, transport::Idle& idle) {
  const bool may_be_direct = direct_.is_for(request, shape_.bytes());
  const FlatDirect::Offer offer = may_be_direct ? direct_.offer(input) : FlatDirect::Offer{};
  choose_way(request, offer.is_made != 0);
  post_long(call, seq, next_way_, offer);
  try {
    const bool tries = way_ == FlatWay::kRead;
    if (!tries || !read_others(request, input, output, idle)) {
      gather(request, input, output, idle);
      // Whoever has tried to read has looked at the others' offers already.
      if (!tries && may_be_direct) direct_.is_agreed(round_);
    }
  } catch (...) {
    direct_.withdraw();
    throw;
  }
  hear_way(request);
}

bool Flat::lets_root_be_ahead(OpKind op) const {
  return op == OpKind::kBroadcast && side_.memory.shares_processors();
}

// A broadcast where ranks share processors. Nobody waits for one of whom it needs nothing, so the
// root may be ahead by all slots, and the others take several operations each time they have the
// processor. What a rank would have heard in the operation before may not be there yet: the root's
// word says how each goes, and that of another, who is behind, how the root's next should.
void Flat::run_ahead(const Request& request, const Call& call, std::uint64_t seq,
                     const std::byte* input, std::byte* output, transport::Idle& idle) {
  const bool is_root = side_.rank == request.root;
  choose_way(request, false);
  post_long(call, seq, is_root ? way_ : next_way_, FlatDirect::Offer{});
  if (!is_root) {
    await_post(request.root, idle);
    take_way(word_of(request.root, round_));
    ways_.hear(request.op, shape_.bytes(), way_);  // So that a longer one can begin with it.
  }
  gather(request, input, output, idle);
  if (is_root) hear_one_behind(request);
}

// After this rank's post. False, on all ranks, if one of them could not: then the slots must do.
bool Flat::read_others(const Request& request, const std::byte* input, std::byte* output,
                       transport::Idle& idle) {
  Lap lap;
  direct_.begin(shape_, request, input, output);
  lap.stop();
  check_posts(idle);
  lap.go_on();
  was_direct_ = direct_.is_agreed(round_) && direct_.finish(shape_, request, round_, output, idle);
  lap.stop();
  if (was_direct_) ways_.note(request.op, shape_.bytes(), FlatWay::kRead, lap.took());
  return was_direct_;
}

void Flat::gather(const Request& request, const std::byte* input, std::byte* output,
                  transport::Idle& idle) {
  Lap lap;
  // Made now: an attempt to read has moved the counters on.
  FlatGather slots(side_, shape_, request, input, output);
  slots.begin(idle);
  lap.stop();
  if (in_step_ != round_ && !lets_root_be_ahead(request.op)) check_posts(idle);
  lap.go_on();
  slots.finish(idle);
  lap.stop();
  was_direct_ = false;
  if (way_ != FlatWay::kRead) ways_.note(request.op, shape_.bytes(), way_, lap.took());
}

// `may_read`: as far as this rank can tell.
void Flat::choose_way(const Request& request, bool may_read) {
  ways_.begin(request.op, shape_.bytes());
  const FlatWay way = ways_.way(request.op, shape_.bytes(), may_read);
  // One rank alone that cannot read: the others find out, and go through the slots too.
  take_way(way == FlatWay::kRead && !may_read ? FlatWay::kSlots : way);
  next_way_ = ways_.wants(request.op, shape_.bytes(), may_read);
}

void Flat::take_way(FlatWay way) {
  way_ = way;
  side_.stays_cached = way_ == FlatWay::kSlotsCached;
  side_.stage = way_ == FlatWay::kSlotsPast ? kernels::copy_past_caches()
                : side_.stays_cached        ? kernels::copy_between_caches()
                                            : kernels::copy_into_caches();
}

FlatWay Flat::word_of(Rank rank, std::uint32_t round) const {
  const std::uint64_t word = side_.memory.long_post(rank, round).way;
  return static_cast<FlatWay>(word % FlatWays::kWays);
}

// After all posts have come.
void Flat::hear_way(const Request& request) {
  // A broadcast's root may be done before the others, who all wait for it; a reduction's is done
  // last.
  Rank decider = 0;
  if (request.op == OpKind::kBroadcast) decider = side_.next(request.root);
  if (request.op == OpKind::kReduce) decider = request.root;
  ways_.hear(request.op, shape_.bytes(), word_of(decider, round_));
}

// The same by a root that may be ahead: of the last such call that the one after it has begun.
void Flat::hear_one_behind(const Request& request) {
  const Rank decider = side_.next(side_.rank);
  const Call& call = side_.memory.post(side_.rank, round_).call;
  for (std::uint32_t behind = 0; behind < FlatMemory::kPosts - 1; ++behind) {
    const Post& theirs = side_.memory.post(decider, round_ - behind);
    if (!theirs.round.has_reached(round_ - behind)) continue;
    if (theirs.call == call)
      ways_.hear(request.op, shape_.bytes(), word_of(decider, round_ - behind));
    return;
  }
}

// Posts, and waits for those whose posts this rank needs.
void Flat::run_short(const Request& request, const Call& call, std::uint64_t seq,
                     const std::byte* input, transport::Idle& idle) {
  post(call, seq, input, payload_bytes(request, shape_, side_.rank));
  const bool is_root = side_.rank == request.root;
  if (request.op == OpKind::kBroadcast) {
    if (!is_root) await_post(request.root, idle);
  } else if (request.op != OpKind::kReduce || is_root) {
    check_posts(idle);
  }
}

// Before this rank's next operation: the others have read all they need of the post that it will
// write over, which they show by having begun an operation after it. What could not be compared in
// the last operation is compared now if it has come: another rank's post of that operation stays as
// it is until this one begins the next.
void Flat::free_post(std::size_t payload, transport::Idle& idle) {
  if (in_step_ == round_) return;
  look_back();
  const std::uint32_t begun = round_ + 2 - side_.memory.turn_of(payload);
  for (Rank peer = side_.next(side_.rank); peer != side_.rank; peer = side_.next(peer))
    side_.wait(peer, side_.memory.post(peer, begun).round, begun, idle);
}

void Flat::look_back() const {
  for (Rank peer = side_.next(side_.rank); peer != side_.rank; peer = side_.next(peer))
    if (side_.memory.post(peer, round_).round.has_reached(round_)) compare_post(peer);
}

void Flat::post(const Call& call, std::uint64_t seq, const std::byte* payload, std::size_t bytes) {
  Post& mine = side_.memory.post(side_.rank, round_);
  mine.seq = seq;
  mine.call = call;
  if (bytes != 0) {
    std::byte* const to = side_.memory.payload(side_.rank, round_, bytes);
    // Where others have read the lines before, vectors are faster than a processor's own copy
    // instruction, which is what C libraries take.
    if (bytes >= FlatMemory::kSpreadBytes && !side_.memory.spreads(bytes))
      copy_in_vectors(to, payload, bytes);
    else
      copy_bytes(to, payload, bytes);
  }
  FlatSide::publish(mine.round, round_);
}

template <typename About>
void Flat::post_long(const Call& call, std::uint64_t seq, FlatWay way, const About& about) {
  const LongPost words{static_cast<std::uint64_t>(way),
                       std::bit_cast<decltype(LongPost::about)>(about)};
  post(call, seq, reinterpret_cast<const std::byte*>(&words), sizeof words);
}

void Flat::check_posts(transport::Idle& idle) {
  for (Rank peer = side_.next(side_.rank); peer != side_.rank; peer = side_.next(peer))
    await_post(peer, idle);
  in_step_ = round_;
}

void Flat::await_post(Rank peer, transport::Idle& idle) {
  side_.wait(peer, side_.memory.post(peer, round_).round, round_, idle);
  compare_post(peer);
}

void Flat::compare_post(Rank peer) const {
  const Post& mine = side_.memory.post(side_.rank, round_);
  const Post& theirs = side_.memory.post(peer, round_);
  if (theirs.seq == mine.seq && theirs.call == mine.call) [[likely]]
    return;
  throw Mismatch(str("the ranks made different calls: rank ", side_.in_world(side_.rank),
                     " called ", describe(mine.call, mine.seq), ", rank ", side_.in_world(peer),
                     " called ", describe(theirs.call, theirs.seq),
                     advice_on(mine.call, theirs.call)));
}

bool Flat::all_share(const SharedPlace& place) const {
  for (Rank peer = side_.next(side_.rank); peer != side_.rank; peer = side_.next(peer))
    if (std::bit_cast<SharedPlace>(side_.memory.long_post(peer, round_).about) != place)
      return false;
  return true;
}

void Flat::finish_short(const Request& request, const std::byte* input, std::byte* output) {
  const auto operand = [&](Rank rank) -> const std::byte* {
    if (rank == side_.rank) return input;
    return side_.memory.payload(rank, round_, payload_bytes(request, shape_, rank));
  };
  if (request.op == OpKind::kReduceScatter) {
    const FlatPart part = shape_.part(side_.rank);
    shape_.reduce(output, part.bytes, side_.rank,
                  [&](Rank rank) { return operand(rank) + part.begin; });
  } else if (request.op == OpKind::kAllGather) {
    for (Rank rank = 0; rank < side_.ranks; ++rank)
      copy_to(output + shape_.part(rank).begin, operand(rank), shape_.part(rank).bytes);
  } else if (request.op == OpKind::kBroadcast) {
    // What is not spread comes as fast by itself.
    if (side_.rank != request.root && side_.memory.spreads(shape_.bytes()))
      copy_from_core(output, operand(request.root), shape_.bytes());
    else
      copy_to(output, operand(request.root), shape_.bytes());
  } else if (request.op == OpKind::kReduce && side_.rank != request.root) {
    return;
  } else if (shape_.is_uniform()) {
    shape_.reduce(output, shape_.bytes(), 0, operand);
  } else {
    for (Rank owner = 0; owner < side_.ranks; ++owner) {
      const FlatPart part = shape_.part(owner);
      if (part.bytes == 0) continue;
      shape_.reduce(output + part.begin, part.bytes, owner,
                    [&](Rank rank) { return operand(rank) + part.begin; });
    }
  }
}

}  // namespace gradring::collectives
