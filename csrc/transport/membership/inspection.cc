#include "transport/membership/inspection.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/config.h"
#include "base/error.h"
#include "base/ticks.h"
#include "transport/joining/handshake.h"
#include "transport/links/socket.h"

namespace gradring::transport {
namespace {

enum class Question : std::uint64_t { kRecord = 1, kClock = 2 };

// A guest that says nothing for so long is sent away: others wait.
constexpr Millis kGuestTime{2000};

template <typename Value>
std::span<std::byte> bytes_of(Value& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

Fd open_inspection(const std::string& address, Time deadline) {
  static constexpr std::string_view kUnix = "unix:";
  std::string why;
  Fd fd = address.rfind(kUnix, 0) == 0 ? connect_unix(address.substr(kUnix.size()), deadline, why)
                                       : connect_tcp(parse_host_port(address), deadline, why);
  if (!fd) throw PeerLost(-1, str("nobody answers at ", address, ": ", why));
  return fd;
}

// One guest's connection. What it says or takes is waited for in slices, as the rank may leave
// meanwhile. Throws ProtocolError if it has gone, TimedOut.
class Visit {
 public:
  Visit(Connection& guest, const std::function<Time()>& until) : guest_(guest), until_(until) {}

  void take(std::span<std::byte> bytes) const {
    move(
        bytes, [this](Time slice) { guest_.wait_readable(slice); },
        [this](auto rest) { return guest_.recv_some(rest); });
  }
  void give(std::span<const std::byte> bytes) const {
    move(
        bytes, [this](Time slice) { guest_.wait_writable(slice); },
        [this](auto rest) { return guest_.send_some(rest); });
  }

 private:
  template <typename Bytes, typename Wait, typename Move>
  void move(Bytes bytes, const Wait& wait, const Move& some) const {
    const Time silence_ends = Clock::now() + kGuestTime;
    while (!bytes.empty()) {
      const Time now = Clock::now();
      if (now >= std::min(silence_ends, until_())) throw TimedOut("the guest has had its time");
      const Io io = some(bytes);
      if (io.closed) throw ProtocolError("the guest has gone");
      bytes = bytes.subspan(io.bytes);
      if (io.bytes == 0) wait(now + limits::kSleepSlice);
    }
  }

  Connection& guest_;
  const std::function<Time()>& until_;
};

void answer(const Visit& visit, Question question, const std::function<std::string()>& record) {
  if (question == Question::kClock) {
    std::int64_t now = steady_nanos();
    return visit.give(bytes_of(now));
  }
  if (question != Question::kRecord) throw ProtocolError("an unknown question");
  const std::string text = record();
  std::uint64_t length = text.size();
  visit.give(bytes_of(length));
  visit.give(std::as_bytes(std::span(text)));
}

}  // namespace

ClockOffset estimate_offset(std::span<const ClockSample> samples) {
  const auto quickest = std::min_element(
      samples.begin(), samples.end(),
      [](const auto& a, const auto& b) { return a.answered - a.asked < b.answered - b.asked; });
  const std::int64_t half = (quickest->answered - quickest->asked) / 2;
  return {quickest->theirs - (quickest->asked + half), half + 1};
}

Inspection::Inspection(const std::string& address, const Credentials& credentials, Time deadline)
    : connection_(open_inspection(address, deadline)), deadline_(deadline) {
  shake_hands(connection_, credentials, {Purpose::kInspect, 0, -1, -1, 0, {}}, deadline);
}

std::string Inspection::record() {
  auto question = Question::kRecord;
  connection_.send_all(bytes_of(question), deadline_);
  std::uint64_t length = 0;
  connection_.recv_all(bytes_of(length), deadline_);
  if (length > limits::kRecordBytes)
    throw ProtocolError(
        str("a record of ", length, " bytes is over the limit of ", limits::kRecordBytes));
  std::string text(length, '\0');
  connection_.recv_all(std::as_writable_bytes(std::span(text)), deadline_);
  return text;
}

ClockOffset Inspection::clock(int questions) {
  std::vector<ClockSample> samples;
  for (int i = 0; i < questions; ++i) {
    auto question = Question::kClock;
    ClockSample sample;
    sample.asked = steady_nanos();
    connection_.send_all(bytes_of(question), deadline_);
    connection_.recv_all(bytes_of(sample.theirs), deadline_);
    sample.answered = steady_nanos();
    samples.push_back(sample);
  }
  return estimate_offset(samples);
}

void answer_inspection(Connection& guest, const std::function<std::string()>& record,
                       const std::function<Time()>& until) noexcept {
  try {
    const Visit visit(guest, until);
    while (true) {
      auto question = Question{};
      visit.take(bytes_of(question));
      answer(visit, question, record);
    }
  } catch (const std::exception&) {
    // It has gone, mostly because it knows what it wanted to know.
  }
}

}  // namespace gradring::transport
