// MemoryLink: a Link inside one process, whose misbehaviour comes from a seed: transfers cut short,
// bytes that arrive late, a connection that breaks at byte k, a network that goes silent. The
// simulator (tests/sim) and the tests of what runs over links drive both ends in one thread and
// move the clock themselves, so a failing seed replays exactly. A frozen rank is one that is not
// driven.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "base/clock.h"
#include "transport/links/link.h"

namespace gradring::transport {

// What all links of a simulation share. The driver changes it between calls.
struct MemoryWeather {
  Time now{};
  std::chrono::microseconds min_delay{0};  // From sending a byte until it can be received; each
  std::chrono::microseconds max_delay{0};  // link draws its own, so links overtake one another.
  std::uint32_t short_percent = 0;  // Of the transfers that move less than they could, or nothing.
};

struct MemoryScript {
  std::uint64_t seed = 1;
  std::size_t capacity_bytes = 64 * 1024;  // Under way in one direction; more is not taken.
  // The connection breaks when this many bytes, of both directions together, have been sent.
  std::uint64_t break_at_byte = std::numeric_limits<std::uint64_t>::max();
};

// One connection: two directions and its fate. Its two MemoryLinks share it.
class MemoryWire {
 public:
  // `weather` outlives the wire.
  MemoryWire(const MemoryWeather& weather, const MemoryScript& script);

  Io send(std::size_t side, std::span<const std::byte> head, std::span<const std::byte> body);
  Io recv(std::size_t side, std::span<std::byte> head, std::span<std::byte> body);
  // This side sends nothing more; the other receives what was sent, then the end.
  void hang_up(std::size_t side) { end(sent_by_[side]); }
  // This side is gone; the other receives what was sent, then the end.
  void close(std::size_t side);
  // Both sides see the end: after what is under way, or (a reset) instead of it.
  void break_off(bool loses_bytes);
  // While it is silent nothing arrives, not even an end.
  void set_silent(bool is_silent) { is_silent_ = is_silent; }

  bool was_broken() const { return was_broken_; }
  // When the next thing reaches `side`, bytes or the end; Time::max() if nothing is under way.
  Time next_arrival(std::size_t side) const;

 private:
  struct Parcel {
    Time arrives;
    std::vector<std::byte> bytes;
  };
  struct Direction {
    std::deque<Parcel> parcels;
    std::size_t taken = 0;  // Of the first parcel.
    std::size_t under_way = 0;
    bool has_ended = false;
    Time end_arrives{};
  };

  Time arrival_time(const Direction& direction);
  void end(Direction& direction);
  std::size_t cut_short(std::size_t bytes);
  std::size_t take(Direction& direction, std::span<std::byte> into);

  const MemoryWeather& weather_;
  MemoryScript script_;
  std::mt19937_64 random_;
  std::array<Direction, 2> sent_by_;  // By side.
  std::array<bool, 2> is_closed_{};
  std::uint64_t bytes_sent_ = 0;
  bool is_silent_ = false;
  bool was_broken_ = false;
};

class MemoryLink final : public Link {
 public:
  // `side`: 0 or 1, the other end has the other.
  MemoryLink(std::shared_ptr<MemoryWire> wire, std::size_t side)
      : wire_(std::move(wire)), side_(side) {}
  ~MemoryLink() override { wire_->close(side_); }
  MemoryLink(const MemoryLink&) = delete;
  MemoryLink& operator=(const MemoryLink&) = delete;

  Io send_some(std::span<const std::byte> head, std::span<const std::byte> body) override {
    return wire_->send(side_, head, body);
  }
  Io recv_some(std::span<std::byte> head, std::span<std::byte> body) override {
    return wire_->recv(side_, head, body);
  }
  bool prepare_sleep(bool, bool) override { return false; }  // Nothing real would wake it.
  void finish_sleep() override {}
  int fd() const override { return -1; }
  short poll_events(bool, bool) const override { return 0; }
  void hang_up() override { wire_->hang_up(side_); }
  std::string peer_address() const override { return "memory"; }

 private:
  std::shared_ptr<MemoryWire> wire_;
  std::size_t side_;
};

}  // namespace gradring::transport
