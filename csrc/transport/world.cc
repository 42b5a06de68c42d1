#include "transport/world.h"

#include <poll.h>

#include <algorithm>
#include <list>

#include "base/config.h"
#include "base/error.h"
#include "transport/joining/processors.h"
#include "transport/links/forks.h"
#include "transport/links/interrupts.h"
#include "transport/links/pass_fd.h"
#include "transport/links/shm_link.h"
#include "transport/links/striped_link.h"
#include "transport/links/tcp_link.h"

namespace gradring::transport {
namespace {

constexpr int kBacklog = 1024;
constexpr Millis kConnectTime{10000};
// Of one link: a door has limits::kHandshakesPending of all who come, from far hosts for long.
constexpr std::size_t kKnocksAtOnce = 4;
constexpr Millis kPassTime{5000};
constexpr Millis kClockTime{1000};
// One guest may stay for so long, whatever it asks: failures wait behind it to be recorded.
constexpr Millis kVisitTime{3000};
// And all together when this rank leaves: enough to end a comparison of clocks.
constexpr Millis kFarewellTime{200};

void check_shm_possible(const JoinOptions& options, const std::vector<wire::Member>& members) {
  if (options.mode != TransportMode::kShm) return;
  for (const wire::Member& member : members)
    if (member.host_key != members[static_cast<std::size_t>(options.rank)].host_key)
      throw InvalidArgument(
          str("transport 'shm': rank ", member.rank, " (", member.tcp_address,
              ") is on another host or in another network name space; use 'auto'"));
}

std::unique_ptr<Link> over(std::vector<Connection> connections) {
  std::vector<std::unique_ptr<Link>> streams;
  for (Connection& connection : connections) {
    if (connections.size() > 1) keep_little_unsent(connection.get(), StripedLink::kUnsentBytes);
    streams.push_back(std::make_unique<TcpLink>(std::move(connection)));
  }
  if (streams.size() == 1) return std::move(streams.front());
  return std::make_unique<StripedLink>(std::move(streams));
}

}  // namespace

std::shared_ptr<World> World::join(const JoinOptions& options) {
  watch_forks();
  if (options.world_size == 1 && !options.is_open_alone)
    return std::shared_ptr<World>(
        new World(options, {wire::Member{0, "", "", "self"}}, random_session()));
  JoinOptions to_meet = options;
  if (options.growth) to_meet.timeout = options.growth->patience;
  Meeting meeting = meet(to_meet);
  check_shm_possible(options, meeting.members);
  std::shared_ptr<World> world(new World(options, meeting.members, meeting.session));
  world->options_.costs = meeting.costs;
  world->options_.streams = meeting.streams;
  world->meeting_point_ = meeting.meeting_point;
  world->door_host_ = local_address(meeting.door->tcp_fd()).host;
  world->lobby_ =
      options.growth && options.growth->lobby ? options.growth->lobby : std::make_shared<Lobby>();
  world->monitor_ = std::make_unique<Monitor>(
      std::move(meeting), options, world->lobby_,
      [world = world.get()](Connection guest) { world->answer(std::move(guest)); });
  return world;
}

World::World(const JoinOptions& options, std::vector<wire::Member> members, wire::SessionId session)
    : options_(options),
      members_(std::move(members)),
      processors_(usable_processors(members_, member(options.rank).host_key)),
      session_(session),
      fork_generation_(fork_generation()) {
  options_.growth.reset();
  options_.check_interrupt = [] { run_interrupt_check(); };  // The other was of the call to join.
}

World::~World() = default;

std::string World::meeting_point(Rank leader) const {
  return leader == 0 && !meeting_point_.empty() ? meeting_point_ : member(leader).tcp_address;
}

Fd World::listen_beside() const {
  return listen_at_free_port(door_host_, options_.ports,
                             [this](int port) { return listen_tcp(door_host_, port, kBacklog); });
}

JoinOptions World::options_to_grow(Rank leader, int port) const {
  JoinOptions options = options_;
  options.rendezvous = {parse_host_port(member(leader).tcp_address).host, port};
  options.listen_fd = -1;
  return options;
}

bool World::is_here() const {
  return fork_generation() == fork_generation_;
}

void World::check_process() const {
  if (is_here()) [[likely]]
    return;
  throw Closed(
      "this communicator belongs to the parent process: a forked child cannot use it. Call "
      "gradring.init() in the child "
      "with a role of its own, or start workers with the 'spawn' method");
}

bool World::shares_host(Rank a, Rank b) const {
  return member(a).host_key == member(b).host_key;
}

bool World::spans_hosts(const Group& group) const {
  return std::any_of(group.members.begin(), group.members.end(),
                     [&](Rank member) { return !shares_host(member, group.members.front()); });
}

std::size_t World::streams_to(Rank peer) const {
  return shares_host(rank(), peer) ? 1 : options_.streams;
}

bool World::shares_memory(Rank a, Rank b) const {
  return options_.mode != TransportMode::kTcp && shares_host(a, b);
}

std::string World::describe(Rank rank) const {
  const std::string& address = member(rank).tcp_address;
  return address.empty() ? str("rank ", rank) : str("rank ", rank, " (", address, ")");
}

std::shared_ptr<Group> World::make_group(std::uint64_t id, std::vector<Rank> members,
                                         std::string made_by) {
  auto group = std::make_shared<Group>(id, std::move(members), std::move(made_by));
  const auto here =
      std::count_if(members_.begin(), members_.end(), [&](const wire::Member& member) {
        return member.host_key == members_[static_cast<std::size_t>(rank())].host_key;
      });
  group->processors = processors_;
  if (here <= processors_) group->looks_before_yield = limits::kLooksBeforeYield;
  if (monitor_)
    monitor_->add(group);
  else if (!made_alone_.with([id](auto& made) { return made.insert(id).second; }))
    throw InvalidArgument(Group::kIsMadeAgain);
  return group;
}

void World::drop_group(std::uint64_t id) {
  if (monitor_) monitor_->remove(id);
}

void World::leave() {
  if (users_.fetch_sub(1) != 1) return;
  if (monitor_) monitor_->stop();
  guests_go_at_.store((Clock::now() + kFarewellTime).time_since_epoch().count(),
                      std::memory_order_relaxed);
  scribe_->stop();
}

void World::set_report(std::function<std::string()> report) {
  report_.with([&](auto& kept) { kept = std::move(report); });
}

std::optional<ClockOffset> World::compare_clocks() const {
  constexpr int kQuestions = 16;
  if (shares_host(rank(), 0)) return ClockOffset{};
  try {
    return Inspection(member(0).tcp_address, options_.credentials, Clock::now() + kClockTime)
        .clock(kQuestions);
  } catch (const Error&) {
    return std::nullopt;  // It has left; the readings before have to do.
  }
}

void World::answer(Connection guest) {
  scribe_->post([this, guest = std::make_shared<Connection>(std::move(guest))] {
    const auto report = report_.with([](const auto& kept) { return kept; });
    const Time visit_ends = Clock::now() + kVisitTime;
    const auto until = [this, visit_ends] {
      const Clock::duration go_at{guests_go_at_.load(std::memory_order_relaxed)};
      return std::min(visit_ends, Time{go_at});
    };
    if (report) answer_inspection(*guest, report, until);
  });
}

void World::report(const wire::Abort& abort) {
  if (monitor_) monitor_->report(abort);
}

void World::request_shrink(const wire::ShrinkRequest& request) {
  if (monitor_) monitor_->request_shrink(request);
}

// A member that ends while it is being talked to is no breach of protocol.
template <typename Talk>
auto World::or_lost(Rank peer, const Talk& talk) const {
  try {
    return talk();
  } catch (const ProtocolError& error) {
    throw PeerLost(peer, str(describe(peer), " broke off a new connection: ", error.what()));
  }
}

World::Limit::Limit(Millis most, Millis timeout)
    : span(std::min(most, timeout)),
      deadline(Clock::now() + span),
      text(timeout < most ? str("not finished within its timeout of ",
                                seconds_between(Time{}, Time{timeout}), " s: ")
                          : str("after ", seconds_between(Time{}, Time{most}), " s ")) {}

void World::Limit::renew() {
  deadline = Clock::now() + span;
}

// Waits until one of `entries` is ready. What the group hears meanwhile ends the wait: a frozen
// rank answers nothing, and the heartbeat knows that long before the deadline does.
void World::await(Group& group, Rank peer, std::vector<pollfd> entries, const Limit& limit) const {
  std::vector<pollfd>& polls = entries;
  polls.push_back({group.wake_fd(), POLLIN, 0});
  while (true) {
    const auto left = std::chrono::duration_cast<Millis>(limit.deadline - Clock::now()) + Millis{1};
    const Millis slice = std::clamp(left, Millis{0}, limits::kSleepSlice);
    const int ready = ::poll(polls.data(), polls.size(), static_cast<int>(slice.count()));
    if (ready < 0) {
      run_interrupt_check();
    } else if (ready > (polls.back().revents != 0 ? 1 : 0)) {
      return;
    }
    group.clear_wake();
    if (group.is_failed()) group.failure().raise();
    if (const auto text = group.left(peer)) throw PeerLost(peer, *text);
    if (Clock::now() >= limit.deadline)
      throw TimedOut(str(limit.text, "no answer from ", describe(peer), " to a new connection"));
  }
}

bool World::is_through(Group& group, Knock& knock) const {
  const Rank peer = knock.to();
  const Knock::Outcome outcome = knock.advance();
  if (outcome == Knock::Outcome::kThrough) return true;
  if (outcome == Knock::Outcome::kWaiting) return false;
  if (outcome == Knock::Outcome::kHere)
    throw DeviceError(
        str(describe(rank()), " can open no connection to ", describe(peer), ": ", knock.why()));
  const auto left = group.left(peer);
  throw PeerLost(peer, left ? *left : str(describe(peer), " cannot be reached: ", knock.why()));
}

std::vector<Connection> World::open(Group& group, const Intro& intro, std::size_t count,
                                    Limit limit) const {
  std::list<Knock> knocks;
  std::vector<Connection> connections;
  while (connections.size() < count) {
    while (knocks.size() < kKnocksAtOnce && knocks.size() + connections.size() < count)
      knocks.emplace_back(member(intro.to), options_.credentials, intro);
    std::vector<pollfd> wants;
    const std::size_t before = connections.size();
    for (auto knock = knocks.begin(); knock != knocks.end();) {
      if (is_through(group, *knock)) {
        connections.push_back(knock->take());
        knock = knocks.erase(knock);
      } else {
        wants.push_back((knock++)->wants());
      }
    }
    if (connections.size() > before)
      limit.renew();
    else
      await(group, intro.to, std::move(wants), limit);
  }
  return connections;
}

std::unique_ptr<Link> World::connect(Group& group, Rank peer, std::uint8_t lane, Millis timeout) {
  const Limit limit(kConnectTime, timeout);
  const bool is_local = shares_memory(rank(), peer);
  const Purpose purpose = is_local ? Purpose::kSharedLink : Purpose::kLink;
  const Intro intro{purpose, lane, rank(), peer, group.id, session_, group.members_hash};
  std::vector<Connection> connections = open(group, intro, streams_to(peer), limit);
  if (!is_local) return over(std::move(connections));
  Connection& connection = connections.front();
  SharedMemory memory = SharedMemory::create(ShmLink::kMemoryBytes);
  or_lost(peer, [&] { send_fd(connection.get(), memory.fd(), limit.deadline); });
  return std::make_unique<ShmLink>(std::move(memory), connection.take_fd(), true);
}

std::unique_ptr<Link> World::accept(Group& group, std::vector<Arrival> arrivals,
                                    Millis timeout) const {
  Arrival& arrival = arrivals.front();
  if (arrival.intro.purpose == Purpose::kLink) {
    std::vector<Connection> connections;
    for (Arrival& one : arrivals) connections.push_back(std::move(one.connection));
    return over(std::move(connections));
  }
  Fd memory = receive_memory(group, arrival, timeout);
  return std::make_unique<ShmLink>(SharedMemory::attach(std::move(memory), ShmLink::kMemoryBytes),
                                   arrival.connection.take_fd(), false);
}

void World::give_segment(Group& group, Rank peer, const SharedMemory& memory, Millis timeout) {
  const Limit limit(kConnectTime, timeout);
  const Intro intro{Purpose::kSegment, 0, rank(), peer, group.id, session_, group.members_hash};
  const std::vector<Connection> connections = open(group, intro, 1, limit);
  or_lost(peer, [&] { send_fd(connections.front().get(), memory.fd(), limit.deadline); });
}

SharedMemory World::take_segment(Group& group, Arrival arrival, std::size_t bytes,
                                 Millis timeout) const {
  return SharedMemory::attach(receive_memory(group, arrival, timeout), bytes);
}

Fd World::receive_memory(Group& group, const Arrival& arrival, Millis timeout) const {
  const Limit limit(kPassTime, timeout);
  await(group, arrival.intro.from, {{arrival.connection.get(), POLLIN, 0}}, limit);
  return or_lost(arrival.intro.from,
                 [&] { return recv_fd(arrival.connection.get(), limit.deadline); });
}

}  // namespace gradring::transport
