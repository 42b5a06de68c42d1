#include "base/record.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/tallies.h"

namespace gradring {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;
constexpr std::size_t kLineBytes = 64;

// Operation, dtype, operator, algorithm and root.
constexpr std::size_t kWhatBytes = 8;
static_assert(offsetof(Call, count) == kWhatBytes);

constexpr std::uint64_t version_of(std::uint64_t ticket, OperationState state) {
  return ticket << 2 | static_cast<std::uint64_t>(state);
}
constexpr OperationState state_in(std::uint64_t version) {
  return static_cast<OperationState>(version & 3);
}

}  // namespace

std::string_view name(OperationState state) {
  switch (state) {
    case OperationState::kQueued: return "queued";
    case OperationState::kStarted: return "started";
    case OperationState::kFinished: return "finished";
    case OperationState::kFailed: return "failed";
  }
  return "unknown";
}

OperationRing::OperationRing(std::size_t size, bool is_added_up)
    : size_(size), is_added_up_(is_added_up) {
  if (size == 0) return;
  std::size_t bytes = (size + 1) * sizeof(Slot);
  memory_.reset(std::calloc(1, bytes));
  void* start = memory_.get();
  if (start == nullptr || std::align(kLineBytes, size * sizeof(Slot), start, bytes) == nullptr)
    throw std::bad_alloc();
  slots_ = static_cast<Slot*>(start);
}

inline bool OperationRing::Slot::is_under_way() const {
  const std::uint64_t version = version_.load(kRelaxed);
  return version != 0 && state_in(version) == OperationState::kStarted;
}

inline void OperationRing::Slot::begin(std::uint64_t ticket, const Call& call, std::uint64_t seq,
                                       Ticks queued) {
  std::uint64_t what = 0;
  std::memcpy(&what, &call, kWhatBytes);
  version_.store(0, kRelaxed);
  what_.store(what, kRelease);
  count_.store(call.count, kRelease);
  counts_hash_.store(call.counts_hash, kRelease);
  seq_.store(seq, kRelease);
  queued_.store(queued, kRelease);
  begun_.store(0, kRelease);
  ended_.store(0, kRelease);
  version_.store(version_of(ticket, OperationState::kStarted), kRelease);
}

OperationRing::Slot* OperationRing::begin(const Call& call, std::uint64_t seq, Ticks queued) {
  const std::uint64_t begun = begun_.load(kRelaxed) + 1;
  begun_.store(begun, kRelaxed);
  if (size_ == 0) return nullptr;
  const std::uint64_t ticket = begun + skipped_;  // They start at 1, so that no version is 0.
  Slot& slot = slots_[ticket % size_];
  if (slot.is_under_way()) [[unlikely]]
    return begin_beyond(call, seq, queued);
  slot.begin(ticket, call, seq, queued);
  return &slot;
}

OperationRing::Slot* OperationRing::begin_beyond(const Call& call, std::uint64_t seq,
                                                 Ticks queued) {
  for (std::size_t tries = 1; tries < size_; ++tries) {
    const std::uint64_t ticket = begun_.load(kRelaxed) + ++skipped_;
    Slot& slot = slots_[ticket % size_];
    if (slot.is_under_way()) continue;
    slot.begin(ticket, call, seq, queued);
    return &slot;
  }
  return nullptr;
}

void OperationRing::end(Slot* slot, OperationState state) {
  if (slot == nullptr) return;
  const Ticks now = ticks_now();
  if (slot->begun_.load(kRelaxed) == 0) slot->begun_.store(now, kRelease);
  slot->ended_.store(now, kRelease);
  slot->version_.store(
      (slot->version_.load(kRelaxed) & ~std::uint64_t{3}) | static_cast<std::uint64_t>(state),
      kRelease);
  if (OperationTallies::are_wanted() && is_added_up_) [[unlikely]]
    slot->add_up(now);
}

void OperationRing::Slot::add_up(Ticks now) const {
  Call call;
  const std::uint64_t what = what_.load(kRelaxed);
  std::memcpy(static_cast<void*>(&call), &what, kWhatBytes);
  call.count = count_.load(kRelaxed);
  const Ticks begun = begun_.load(kRelaxed);  // Of another core, whose clock may be a little ahead.
  OperationTallies::of_process().add(call, now > begun ? now - begun : 0);
}

void OperationRing::Slot::detail() {
  const std::uint64_t ticket = version_.load(kRelaxed) >> 2;
  if (detail_of_.load(kRelaxed) == ticket) return;
  detail_of_.store(0, kRelaxed);
  for (Word* word : {&sent_, &to_send_, &received_, &to_receive_}) word->store(0, kRelease);
  peer_.store(-1, kRelease);
  tag_.store(0, kRelease);
  detail_of_.store(ticket, kRelease);
}

void OperationRing::Slot::expect(std::uint64_t to_send, std::uint64_t to_receive) {
  detail();
  to_send_.store(to_send_.load(kRelaxed) + to_send, kRelease);
  to_receive_.store(to_receive_.load(kRelaxed) + to_receive, kRelease);
}

void OperationRing::Slot::set_moved(std::uint64_t sent, std::uint64_t received) {
  detail();
  sent_.store(sent, kRelease);
  received_.store(received, kRelease);
}

void OperationRing::Slot::set_peer(Rank world_rank) {
  detail();
  peer_.store(world_rank, kRelease);
}

void OperationRing::Slot::set_message(Rank world_rank, std::int32_t tag) {
  set_peer(world_rank);
  tag_.store(tag, kRelease);
}

std::uint64_t OperationRing::Slot::sent() const {
  return detail_of_.load(kRelaxed) == version_.load(kRelaxed) >> 2 ? sent_.load(kRelaxed) : 0;
}

std::uint64_t OperationRing::Slot::received() const {
  return detail_of_.load(kRelaxed) == version_.load(kRelaxed) >> 2 ? received_.load(kRelaxed) : 0;
}

// False where there is nothing, or it changes right now.
bool OperationRing::Slot::read(OperationRecord& record, std::uint64_t& ticket) const {
  const std::uint64_t version = version_.load(kAcquire);
  if (version == 0) return false;
  ticket = version >> 2;
  record.state = state_in(version);
  const std::uint64_t what = what_.load(kAcquire);
  std::memcpy(static_cast<void*>(&record.call), &what, kWhatBytes);
  record.call.count = count_.load(kAcquire);
  record.call.counts_hash = counts_hash_.load(kAcquire);
  record.seq = seq_.load(kAcquire);
  record.queued = queued_.load(kAcquire);
  record.begun = begun_.load(kAcquire);
  record.ended = ended_.load(kAcquire);
  if (detail_of_.load(kAcquire) == ticket) {
    record.sent = sent_.load(kAcquire);
    record.to_send = to_send_.load(kAcquire);
    record.received = received_.load(kAcquire);
    record.to_receive = to_receive_.load(kAcquire);
    record.peer = peer_.load(kAcquire);
    record.tag = tag_.load(kAcquire);
  }
  return version_.load(kRelaxed) == version;
}

std::vector<OperationRecord> OperationRing::read() const {
  std::vector<std::pair<std::uint64_t, OperationRecord>> found;
  for (std::size_t index = 0; index < size_; ++index) {
    // A slot that changes every time we look is one of the busiest, and will be looked at again in
    // the next record; a few tries are enough.
    for (int tries = 0; tries < 8; ++tries) {
      OperationRecord record;
      std::uint64_t ticket = 0;
      if (!slots_[index].read(record, ticket)) continue;
      found.emplace_back(ticket, record);
      break;
    }
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<OperationRecord> records;
  records.reserve(found.size());
  for (const auto& [ticket, record] : found) records.push_back(record);
  return records;
}

}  // namespace gradring
