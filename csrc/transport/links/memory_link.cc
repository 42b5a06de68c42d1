#include "transport/links/memory_link.h"

#include <algorithm>

namespace gradring::transport {

MemoryWire::MemoryWire(const MemoryWeather& weather, const MemoryScript& script)
    : weather_(weather), script_(script), random_(script.seed) {}

Io MemoryWire::send(std::size_t side, std::span<const std::byte> head,
                    std::span<const std::byte> body) {
  Direction& out = sent_by_[side];
  const Direction& back = sent_by_[1 - side];
  const bool knows_end = back.has_ended && !is_silent_ && back.end_arrives <= weather_.now;
  if (out.has_ended || knows_end) return {0, true};
  std::size_t room = std::min(head.size() + body.size(), script_.capacity_bytes - out.under_way);
  room = std::min<std::uint64_t>(cut_short(room), script_.break_at_byte - bytes_sent_);
  if (room > 0) {
    const std::size_t of_head = std::min(room, head.size());
    Parcel parcel{arrival_time(out), {}};
    parcel.bytes.assign(head.begin(), head.begin() + static_cast<std::ptrdiff_t>(of_head));
    parcel.bytes.insert(parcel.bytes.end(), body.begin(),
                        body.begin() + static_cast<std::ptrdiff_t>(room - of_head));
    bytes_sent_ += room;
    // To a closed peer bytes leave, and are never read.
    if (!is_closed_[1 - side]) {
      out.under_way += room;
      out.parcels.push_back(std::move(parcel));
    }
  }
  if (bytes_sent_ == script_.break_at_byte) break_off(false);
  return {room, false};
}

Io MemoryWire::recv(std::size_t side, std::span<std::byte> head, std::span<std::byte> body) {
  if (is_silent_) return {};
  Direction& in = sent_by_[1 - side];
  std::size_t got = take(in, head);
  if (got == head.size()) got += take(in, body);
  const bool is_over = in.has_ended && in.parcels.empty() && in.end_arrives <= weather_.now;
  return {got, got == 0 && is_over};
}

std::size_t MemoryWire::take(Direction& direction, std::span<std::byte> into) {
  std::size_t got = 0;
  while (got < into.size() && !direction.parcels.empty() &&
         direction.parcels.front().arrives <= weather_.now) {
    const std::vector<std::byte>& bytes = direction.parcels.front().bytes;
    const std::size_t most = std::min(into.size() - got, bytes.size() - direction.taken);
    const std::size_t count = cut_short(most);
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(direction.taken), count,
                into.begin() + static_cast<std::ptrdiff_t>(got));
    got += count;
    direction.taken += count;
    direction.under_way -= count;
    if (direction.taken == bytes.size()) {
      direction.parcels.pop_front();
      direction.taken = 0;
    }
    if (count < most) break;
  }
  return got;
}

void MemoryWire::close(std::size_t side) {
  if (is_closed_[side]) return;
  is_closed_[side] = true;
  end(sent_by_[side]);
  Direction& unread = sent_by_[1 - side];
  unread.parcels.clear();
  unread.taken = 0;
  unread.under_way = 0;
}

void MemoryWire::break_off(bool loses_bytes) {
  was_broken_ = true;
  for (Direction& direction : sent_by_) {
    if (loses_bytes) {
      direction.parcels.clear();
      direction.taken = 0;
      direction.under_way = 0;
    }
    end(direction);
  }
}

Time MemoryWire::next_arrival(std::size_t side) const {
  const Direction& in = sent_by_[1 - side];
  if (is_silent_ || is_closed_[side] || (in.parcels.empty() && !in.has_ended)) return Time::max();
  const Time arrives = in.parcels.empty() ? in.end_arrives : in.parcels.front().arrives;
  return arrives > weather_.now ? arrives : Time::max();
}

// Bytes of one direction keep their order.
Time MemoryWire::arrival_time(const Direction& direction) {
  const auto span = static_cast<std::uint64_t>((weather_.max_delay - weather_.min_delay).count());
  const auto extra = static_cast<std::int64_t>(random_() % (span + 1));
  const Time arrives = weather_.now + weather_.min_delay + std::chrono::microseconds{extra};
  return direction.parcels.empty() ? arrives : std::max(arrives, direction.parcels.back().arrives);
}

void MemoryWire::end(Direction& direction) {
  if (direction.has_ended) return;
  direction.end_arrives = arrival_time(direction);
  direction.has_ended = true;
}

std::size_t MemoryWire::cut_short(std::size_t bytes) {
  if (bytes == 0 || random_() % 100 >= weather_.short_percent) return bytes;
  return random_() % bytes;
}

}  // namespace gradring::transport
