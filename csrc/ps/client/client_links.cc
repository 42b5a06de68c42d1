// The client's links, as whoever has the driver's seat sees them: made, written to, read, waited
// for, taken leave of.
#include <poll.h>
#include <unistd.h>

#include <algorithm>

#include "base/config.h"
#include "ps/client/client.h"
#include "ps/client/plain_call.h"

namespace gradring::ps {
namespace {

constexpr int kFramesPerTurn = 4;
constexpr Millis kGoodbyeTime{200};

}  // namespace

// Takes the link that was made meanwhile, or has one made.
void Client::connect(std::uint32_t shard, Time now) {
  if (is_closed()) return;
  Session& session = core_.session(shard);
  if (auto dialed = dialer_.take(shard); !dialed) {
    if (!session.wants_connection(now)) return;
    dialer_.begin(shard);  // Or one is under way that takes longer than it should.
    session.connecting(now + Dialer::kTime);
  } else if (dialed->link) {
    connections_[shard].link = std::move(dialed->link);
    connections_[shard].reader = FrameReader();
    session.connected(now);
  } else if (dialed->failure.kind == ErrorKind::kInvalidArgument && !session.was_welcome()) {
    core_.give_up(shard, dialed->failure);
  } else {
    // Also with another secret: the port has another owner by now.
    session.disconnected(dialed->failure.text, now);
  }
}

void Client::disconnect(std::uint32_t shard, const std::string& why) {
  connections_[shard].link.reset();
  connections_[shard].is_blocked = false;
  core_.session(shard).disconnected(why, Clock::now());
}

// Of links that nobody sleeps on: shared memory says nothing of a peer that is gone. Under the
// seat.
void Client::notice_hang_ups() {
  for (const Connection& connection : connections_)
    if (connection.link) connection.link->finish_sleep();
}

bool Client::lacks_connection() const {
  for (std::uint32_t shard = 0; shard < connections_.size(); ++shard)
    if (!connections_[shard].link && core_.session(shard).is_wanted()) return true;
  return false;
}

bool Client::push(std::uint32_t shard, Time now) {
  Connection& connection = connections_[shard];
  Session& session = core_.session(shard);
  bool moved = false;
  connection.is_blocked = false;
  for (int frames = 0; frames < kFramesPerTurn;) {
    const Output output = session.output(now);
    std::array<std::span<const std::byte>, 3> spans = output.spans;
    const auto end = std::remove_if(spans.begin(), spans.end(), [](auto s) { return s.empty(); });
    const auto used = end - spans.begin();
    if (used == 0) return moved;
    const auto second = used > 1 ? spans[1] : std::span<const std::byte>();
    const transport::Io io = connection.link->send_some(spans[0], second);
    if (io.closed) {
      disconnect(shard, "the server closed the connection");
      return moved;
    }
    session.sent(io.bytes, now);
    bytes_sent_.fetch_add(io.bytes, std::memory_order_relaxed);
    moved |= io.bytes > 0;
    if (io.bytes < spans[0].size() + second.size()) {
      connection.is_blocked = true;
      return moved;
    }
    if (used < 3) ++frames;
  }
  return moved;
}

bool Client::pull(std::uint32_t shard) {
  Connection& connection = connections_[shard];
  Session& session = core_.session(shard);
  FrameReader& reader = connection.reader;
  bool moved = false;
  for (int frames = 0; frames < kFramesPerTurn;) {
    if (reader.uses_memory() && !session.is_awaited(reader.header().request)) {
      disconnect(shard, "a call was given up in the middle of its answer");
      return true;
    }
    switch (reader.read(*connection.link)) {
      case FrameReader::Step::kNothing: return moved;
      case FrameReader::Step::kClosed:
        disconnect(shard, "the server closed the connection");
        return true;
      case FrameReader::Step::kMoved:
        if (reader.is_inside_frame()) session.moved(Clock::now());
        break;
      case FrameReader::Step::kHeader: {
        const auto memory = session.destination(reader.header());
        if (!memory.empty() && memory.size() == reader.header().payload_bytes)
          reader.use_memory(memory);
        break;
      }
      case FrameReader::Step::kFrame:
        bytes_received_.fetch_add(wire::kPsHeaderBytes + reader.header().payload_bytes,
                                  std::memory_order_relaxed);
        core_.receive(shard, reader.header(), reader.payload(), Clock::now());
        if (session.wants_hang_up()) return true;
        ++frames;
        break;
    }
    moved = true;
  }
  return moved;
}

// Until a link has something or somebody calls. Under the seat.
void Client::sleep(Time now) {
  std::vector<pollfd> polls{{wake_.get(), POLLIN, 0}};
  bool may_sleep = !has_posted_.load(std::memory_order_acquire);
  for (const Connection& connection : connections_) {
    if (!connection.link) continue;
    may_sleep &= connection.link->prepare_sleep(true, connection.is_blocked);
    polls.push_back(
        {connection.link->fd(), connection.link->poll_events(true, connection.is_blocked), 0});
  }
  const auto left = std::chrono::duration_cast<Millis>(
                        std::min(core_.next_tick(), now + limits::kSleepSlice) - now) +
                    Millis{1};
  if (may_sleep)
    ::poll(polls.data(), polls.size(),
           static_cast<int>(std::clamp(left, Millis{0}, limits::kSleepSlice).count()));
  for (const Connection& connection : connections_)
    if (connection.link) connection.link->finish_sleep();
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof count);
}

// So that the shards need not wait whether this client comes back. Under the seat.
void Client::say_goodbye() {
  const auto call = std::make_shared<PlainCall>("goodbye");
  wire::PsHeader header;
  header.type = wire::PsType::kGoodbye;
  for (std::uint32_t shard = 0; shard < connections_.size(); ++shard)
    if (connections_[shard].link) call->add(shard, header);
  const Time deadline = Clock::now() + kGoodbyeTime;
  core_.submit(call, kGoodbyeTime, Clock::now());
  while (!call->is_done() && Clock::now() < deadline)
    if (!drive_once() && !pause_.look_again()) sleep(Clock::now());
  core_.cancel(*call, {ErrorKind::kClosed, -1, ""});
}

}  // namespace gradring::ps
