#include "transport/membership/monitor.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/config.h"
#include "base/log.h"
#include "base/threads.h"
#include "transport/joining/control_frames.h"

namespace gradring::transport {
namespace {

constexpr Millis kGoodbyeTime{200};
constexpr Millis kNewcomerTime{200};  // It has proved that it knows the secret, and writes at once.

std::vector<std::string> addresses_of(const std::vector<wire::Member>& members) {
  std::vector<std::string> addresses;
  for (const wire::Member& member : members) addresses.push_back(member.tcp_address);
  return addresses;
}

}  // namespace

Monitor::Monitor(Meeting meeting, const JoinOptions& options, std::shared_ptr<Lobby> lobby,
                 std::function<void(Connection)> inspect)
    : meeting_(std::move(meeting)),
      rank_(options.rank),
      credentials_(options.credentials),
      inspect_(std::move(inspect)),
      lobby_(std::move(lobby)),
      is_first_there_(!options.growth || options.growth->lobby == nullptr),
      membership_({options.rank, options.world_size, options.heartbeat_timeout,
                   addresses_of(meeting_.members)},
                  Clock::now()),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  Membership::Actions actions;
  for (auto& [rank, connection] : meeting_.controls) {
    controls_[rank].connection = std::move(connection);
    membership_.on_connected(rank, Clock::now(), actions);
  }
  lobby_->enter(this, [this] { wake(); });
  for (Arrival& arrival : std::exchange(meeting_.early, {})) {
    if (arrival.intro.purpose == Purpose::kNewcomer)
      take_newcomer(std::move(arrival));
    else
      groups_.with([&](Groups& groups) { groups.unclaimed.push_back(std::move(arrival)); });
  }
  try {
    thread_ = start_thread("monitor", [this] { run(); });
  } catch (...) {
    lobby_->leave(this, Fd());  // Which the world before may still have.
    throw;
  }
}

void Monitor::stop() {
  if (!thread_.joinable()) return;
  orders_.with([](Orders& orders) { orders.is_leaving = true; });
  wake();
  thread_.join();
}

void Monitor::report(const wire::Abort& abort) {
  orders_.with([&](Orders& orders) { orders.aborts.push_back(abort); });
  wake();
}

void Monitor::request_shrink(const wire::ShrinkRequest& request) {
  orders_.with([&](Orders& orders) { orders.shrinks.push_back(request); });
  wake();
}

void Monitor::wake() {
  ::eventfd_write(wake_.get(), 1);
}

std::vector<wire::CallState> Monitor::calls() const {
  return groups_.with([](const Groups& groups) {
    std::vector<wire::CallState> calls;
    for (const auto& [id, group] : groups.by_id) calls.push_back(group->call());
    return calls;
  });
}

void Monitor::run() {
  try {
    bool is_leaving = false;
    while (!is_leaving) {
      wait();
      Membership::Actions actions;
      step(actions);
      is_leaving = orders_.with([](const Orders& orders) { return orders.is_leaving; });
      if (is_leaving) membership_.leave(actions);
      carry_out(actions);
    }
    say_goodbye();
    controls_.clear();
    leave_lobby();
    meeting_.door.reset();
  } catch (const std::exception& error) {
    leave_lobby();
    const Failure failure = Failure::from(error);
    log_warning(rank_, str("the monitor stopped: ", failure.text));
    groups_.with([&](Groups& groups) {
      for (const auto& [id, group] : groups.by_id) group->fail(failure);
    });
  }
}

void Monitor::wait() {
  std::vector<pollfd> polls{{wake_.get(), POLLIN, 0}};
  meeting_.door->add_polls(polls);
  for (const auto& [rank, control] : controls_)
    polls.push_back(
        {control.connection.get(), control.connection.events(true, !control.out.empty()), 0});
  if (knock_) polls.push_back(knock_->wants());
  probes_.add_polls(polls);
  const auto left = std::chrono::duration_cast<Millis>(next_beat_ - Clock::now()).count();
  ::poll(polls.data(), polls.size(), static_cast<int>(std::clamp<std::int64_t>(left + 1, 0, 1000)));
  eventfd_t count = 0;
  ::eventfd_read(wake_.get(), &count);
}

void Monitor::step(Membership::Actions& actions) {
  Orders orders = orders_.with([](Orders& pending) {
    Orders taken = std::move(pending);
    pending = Orders{};
    pending.is_leaving = taken.is_leaving;
    return taken;
  });
  if (Fd listener = lobby_->take_listener()) meeting_.door->open_also(std::move(listener));
  for (Arrival& arrival : meeting_.door->work(Clock::now()))
    take_arrival(std::move(arrival), actions);
  advance_knock(actions);
  work_probes(actions);
  read_controls(actions);
  for (const wire::Abort& abort : orders.aborts) membership_.abort(abort, actions);
  for (const wire::ShrinkRequest& request : orders.shrinks) membership_.shrink(request, actions);
  for (const wire::Left& left : orders.lefts) membership_.leave_group(left, actions);
  const Time now = Clock::now();
  if (now < next_beat_) return;
  membership_.on_tick(now, calls(), actions);
  next_beat_ = now + membership_.beat_interval();
}

void Monitor::carry_out(Membership::Actions& actions) {
  // Carrying out may find a connection broken or open a new one, which asks for more; each round
  // loses a peer or ends.
  while (true) {
    tell_groups(actions);
    for (const std::string& text : actions.warnings)
      log_warning(rank_, str(text, "; where each rank is: gradring doctor --job ", ::getpid()));
    for (const auto& [rank, message] : actions.send) {
      const auto control = controls_.find(rank);
      if (control == controls_.end()) continue;
      const std::vector<std::byte> payload = wire::encode(message);
      const auto length = static_cast<std::uint32_t>(payload.size());
      const auto head = std::as_bytes(std::span(&length, 1));
      auto& out = control->second.out;
      out.insert(out.end(), head.begin(), head.end());
      out.insert(out.end(), payload.begin(), payload.end());
    }
    Membership::Actions more;
    for (const Rank rank : actions.contested)
      for (const wire::Abort& abort : failed_by(rank)) membership_.abort(abort, more);
    flush_controls(more);
    for (const Rank rank : actions.disconnect) controls_.erase(rank);
    if (actions.connect) {
      connect(*actions.connect);
      advance_knock(more);
    }
    for (const Rank rank : actions.probe)
      probes_.ask(rank, meeting_.members[static_cast<std::size_t>(rank)]);
    if (!actions.probe.empty()) work_probes(more);
    const bool is_done = more.send.empty() && more.disconnect.empty() && !more.connect &&
                         more.gone.empty() && more.aborted.empty() && more.shrunk.empty() &&
                         more.awaited.empty() && more.left.empty();
    if (is_done) return;
    actions = std::move(more);
  }
}

void Monitor::take_arrival(Arrival arrival, Membership::Actions& actions) {
  const Intro& intro = arrival.intro;
  if (intro.purpose == Purpose::kInspect) return inspect_(std::move(arrival.connection));
  if (intro.purpose == Purpose::kNewcomer) return take_newcomer(std::move(arrival));
  const bool is_ours = intro.session == meeting_.session && intro.to == rank_ && intro.from >= 0 &&
                       intro.from < static_cast<Rank>(meeting_.members.size()) &&
                       intro.from != rank_;
  if (intro.purpose == Purpose::kControl && intro.session == wire::SessionId{})
    return send_away(std::move(arrival.connection));
  if (!is_ours) {
    log_warning_once(rank_, "session",
                     str("refused a connection of another job or run with the same secret from ",
                         peer_text(arrival.connection.get())));
    return;
  }
  if (intro.purpose == Purpose::kControl) {
    controls_[intro.from] = Control{std::move(arrival.connection), {}, {}};
    membership_.on_connected(intro.from, Clock::now(), actions);
    return;
  }
  hand_over(std::move(arrival));
}

// Somebody wants to join who comes too late, or too early: for what this rank will join after this.
void Monitor::send_away(Connection newcomer) const {
  try {
    const Time deadline = Clock::now() + kNewcomerTime;
    recv_frame(newcomer, deadline);  // Its join: what is not read would undo what is sent.
    send_frame(newcomer,
               wire::Refused{"all ranks of this job have joined; who comes later calls join(), and "
                             "a script that calls init() again closes its first communicator on "
                             "every rank before",
                             true},
               deadline);
  } catch (const Error&) {
    // It asks again.
  }
}

void Monitor::take_newcomer(Arrival newcomer) {
  // The lobby closes what it does not take.
  const Rank leader = membership_.coordinator();
  if (leader == rank_ && lobby_->has_room()) return lobby_->take_in(std::move(newcomer));
  // Rank 0's door of its own goes when the job grows again.
  const std::string& place = leader == 0 && !meeting_.meeting_point.empty()
                                 ? meeting_.meeting_point
                                 : meeting_.members[static_cast<std::size_t>(leader)].tcp_address;
  const wire::Refused refused =
      leader == rank_
          ? wire::Refused{str(limits::kNewcomers, " newcomers wait there already"), true}
          : wire::Refused{str("rank ", leader, " leads this job now; newcomers come to ", place),
                          false};
  try {
    send_frame(newcomer.connection, refused, Clock::now() + kNewcomerTime);
  } catch (const Error&) {
    // It asks again.
  }
}

// Whoever opens that door next finds those who have come meanwhile behind it.
void Monitor::leave_lobby() {
  const bool has_listener = is_first_there_ || meeting_.door->is_open_twice();
  lobby_->leave(this, has_listener ? meeting_.door->take_listener() : Fd());
}

void Monitor::connect(Rank peer) {
  if (knock_ && knock_->to() == peer) return;
  knock_.emplace(meeting_.members[static_cast<std::size_t>(peer)], credentials_,
                 Intro{Purpose::kControl, 0, rank_, peer, 0, meeting_.session});
}

// A connection that breaks on the way says nothing about who is there: the next tick asks again,
// and the heartbeat timeout has the last word.
void Monitor::advance_knock(Membership::Actions& actions) {
  if (!knock_) return;
  const Rank peer = knock_->to();
  if (!membership_.is_alive(peer)) return knock_.reset();
  const Knock::Outcome outcome = knock_->advance();
  if (outcome == Knock::Outcome::kWaiting) return;
  Connection connection = knock_->take();
  knock_.reset();
  if (outcome == Knock::Outcome::kRefused) membership_.on_refused(peer, Clock::now(), actions);
  if (outcome != Knock::Outcome::kThrough) return;
  controls_[peer] = Control{std::move(connection), {}, {}};
  membership_.on_connected(peer, Clock::now(), actions);
}

void Monitor::work_probes(Membership::Actions& actions) {
  for (const Rank rank : probes_.work())
    if (membership_.is_alive(rank)) membership_.on_refused(rank, Clock::now(), actions);
}

void Monitor::read_controls(Membership::Actions& actions) {
  std::vector<std::pair<Rank, std::string>> closed;
  for (auto& [rank, control] : controls_) {
    std::string why;
    if (!read_control(rank, control, why, actions)) closed.emplace_back(rank, why);
  }
  for (const auto& [rank, why] : closed) {
    controls_.erase(rank);
    membership_.on_closed(rank, Clock::now(), why, actions);
  }
}

bool Monitor::read_control(Rank peer, Control& control, std::string& why,
                           Membership::Actions& actions) {
  std::array<std::byte, 16384> chunk;
  bool is_open = true;
  while (is_open) {
    const Io io = control.connection.recv_some(chunk);
    is_open = !io.closed;
    if (io.bytes == 0) break;
    control.in.insert(control.in.end(), chunk.begin(),
                      chunk.begin() + static_cast<std::ptrdiff_t>(io.bytes));
  }
  try {
    std::size_t at = 0;
    std::uint32_t length = 0;
    while (control.in.size() - at >= sizeof length) {
      std::memcpy(&length, control.in.data() + at, sizeof length);
      if (length > limits::kControlFrameBytes)
        throw ProtocolError(str("a control message of ", length, " bytes"));
      if (control.in.size() - at - sizeof length < length) break;
      const auto payload = std::span(control.in).subspan(at + sizeof length, length);
      membership_.on_message(peer, wire::decode_message(payload), Clock::now(), actions);
      at += sizeof length + length;
    }
    control.in.erase(control.in.begin(), control.in.begin() + static_cast<std::ptrdiff_t>(at));
  } catch (const Error& error) {
    why = str("sent a control message that makes no sense: ", error.what());
    return false;
  }
  why = "closed its control connection: its process ended";
  return is_open;
}

void Monitor::flush_controls(Membership::Actions& actions) {
  std::vector<Rank> stuck;
  for (auto& [rank, control] : controls_) {
    while (!control.out.empty()) {
      const Io io = control.connection.send_some(control.out);
      control.out.erase(control.out.begin(),
                        control.out.begin() + static_cast<std::ptrdiff_t>(io.bytes));
      // What it said before it went (a goodbye, say) is still to be read: reading finds the end of
      // file.
      if (io.closed) control.out.clear();
      if (io.bytes == 0) break;
    }
    if (control.out.size() > limits::kControlFrameBytes) stuck.push_back(rank);
  }
  for (const Rank rank : stuck) {
    controls_.erase(rank);
    membership_.on_closed(rank, Clock::now(), "does not read its control connection any more",
                          actions);
  }
}

// Closing a socket with unread bytes in it would reset the connection and take our goodbye with it;
// so the goodbye is sent, and the others' end of file awaited, which they send when they have read
// it.
void Monitor::say_goodbye() {
  const Time deadline = Clock::now() + kGoodbyeTime;
  // A coordinator that is only being found is told too: on_connected says goodbye.
  while (knock_ && Clock::now() < deadline) {
    pollfd entry = knock_->wants();
    ::poll(&entry, 1, 10);
    Membership::Actions actions;
    advance_knock(actions);
    carry_out(actions);
  }
  for (auto& [rank, control] : controls_) {
    try {
      control.connection.send_all(control.out, deadline);
      ::shutdown(control.connection.get(), SHUT_WR);
    } catch (const Error&) {
      // It is gone or stuck; the goodbye was a courtesy.
    }
  }
  for (auto& [rank, control] : controls_) {
    std::array<std::byte, 4096> chunk;
    while (control.connection.wait_readable(deadline))
      if (control.connection.recv_some(chunk).closed) break;
  }
}

}  // namespace gradring::transport
