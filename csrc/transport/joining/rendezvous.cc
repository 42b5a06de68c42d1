#include "transport/joining/rendezvous.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/config.h"
#include "base/error.h"
#include "base/log.h"
#include "transport/joining/control_frames.h"
#include "transport/joining/host.h"
#include "transport/joining/processors.h"
#include "transport/links/path.h"
#include "transport/links/resolve.h"

namespace gradring::transport {
namespace {

constexpr Millis kRetryPause{50};
constexpr Millis kShortestTry{200};
constexpr Millis kLookPause{50};
constexpr Millis kTakenPatience{2000};
constexpr int kBacklog = 1024;

std::string hex(const wire::SessionId& session) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : session) {
    text += kDigits[static_cast<unsigned>(byte) >> 4];
    text += kDigits[static_cast<unsigned>(byte) & 15];
  }
  return text;
}

wire::Member describe_self(const JoinOptions& options, const std::string& tcp_address) {
  wire::Member self;
  self.rank = options.rank;
  self.tcp_address = tcp_address;
  self.unix_name = str("gradring-", hex(random_session()));
  self.host_key = host_key() + options.host_label;
  self.link_mbit = options.link_mbit;
  describe_processors(self);
  return self;
}

std::unique_ptr<Door> open_door(const JoinOptions& options, Fd listener, const wire::Member& self) {
  // Without shared memory nobody has business at a Unix socket.
  Fd local = options.mode == TransportMode::kTcp ? Fd() : listen_unix(self.unix_name, 1024);
  return std::make_unique<Door>(std::move(listener), std::move(local), options.credentials,
                                options.rank);
}

void check_interrupt(const JoinOptions& options) {
  if (options.check_interrupt) options.check_interrupt();
}

// "1, 3": those who never came, or those who came and went again.
std::string missing_ranks(const Meeting& meeting, bool has_come) {
  std::string text;
  for (std::size_t rank = 0; rank < meeting.members.size(); ++rank) {
    const bool came = std::count(meeting.departed.begin(), meeting.departed.end(), rank) > 0;
    if (meeting.members[rank].rank < 0 && came == has_come)
      text += str(text.empty() ? "" : ", ", rank);
  }
  return text;
}

bool is_complete(const Meeting& meeting) {
  return std::all_of(meeting.members.begin(), meeting.members.end(),
                     [](const wire::Member& member) { return member.rank >= 0; });
}

std::string who_is_missing(const Meeting& meeting) {
  const std::string never = missing_ranks(meeting, false);
  const std::string departed = missing_ranks(meeting, true);
  const std::string gone =
      departed.empty() ? "" : str("rank ", departed, " had joined and left: it ended, or gave up");
  if (never.empty()) return gone;
  return str("rank ", never, " of a world of ", meeting.members.size(), " had not joined",
             gone.empty() ? "" : ", ", gone);
}

std::string what_to_do(const Door& door) {
  if (door.other_build().empty()) return "start the missing ranks, or raise the timeout";
  return str("a process that may be one of them was refused, ", door.other_build());
}

[[noreturn]] void give_up_waiting(const JoinOptions& options, const Meeting& meeting,
                                  const HostPort& address) {
  std::vector<Rank> missing;
  for (std::size_t rank = 0; rank < meeting.members.size(); ++rank)
    if (meeting.members[rank].rank < 0) missing.push_back(static_cast<Rank>(rank));
  throw NotMet(str("rendezvous at ", to_text(address), ": after ",
                   seconds_between(Time{}, Time{options.timeout}), " s ", who_is_missing(meeting),
                   "; ", what_to_do(*meeting.door)),
               std::move(missing));
}

// What names the link of a link-local address: "%eth0". Each host has a name of its own for it.
std::string link_of(const std::string& host) {
  const auto at = host.find('%');
  return at == std::string::npos ? "" : host.substr(at);
}

// The address of somebody else on a link that is called `link` here.
std::string seen_over(const std::string& link, const std::string& tcp_address) {
  HostPort address = parse_host_port(tcp_address);
  if (!link.empty() && !link_of(address.host).empty())
    address.host = address.host.substr(0, address.host.find('%')) + link;
  return to_text(address);
}

// Why a join makes no sense, or nothing. `here` is where the rank has reached this one.
std::string objection(const JoinOptions& options, const wire::Join& join, const Meeting& meeting,
                      const HostPort& here) {
  const Rank rank = join.member.rank;
  const std::vector<wire::Member>& members = meeting.members;
  if (join.world_size != static_cast<std::uint32_t>(options.world_size))
    return str("rank ", rank, " was started with world size ", join.world_size, ", rank 0 with ",
               options.world_size);
  if (rank <= 0 || rank >= options.world_size)
    return str("rank ", rank, " does not exist in a world of ", options.world_size);
  // Behind a tunnel everybody seems to come over loopback; there nothing can be said.
  if (join.member.host_key != members[0].host_key && !is_loopback(here.host) &&
      is_loopback(parse_host_port(join.member.tcp_address).host))
    return str("rank ", rank, " listens at ", join.member.tcp_address,
               ", which no other host reaches, and rank 0 is on another; GRADRING_INTERFACE there "
               "is to name an interface, or a network, that the other hosts reach");
  for (std::size_t other = 0; other < members.size(); ++other) {
    const TransportMode mode = meeting.modes[other];
    // They would look for each other in different places.
    if (members[other].rank >= 0 && members[other].host_key == join.member.host_key &&
        (mode == TransportMode::kTcp) != (join.mode == TransportMode::kTcp))
      return str("rank ", rank, " was started with transport ", wire::name(join.mode), ", rank ",
                 other, " of the same host with ", wire::name(mode),
                 "; all ranks of a host use tcp, or none of them does");
  }
  if (members[static_cast<std::size_t>(rank)].rank >= 0)
    return str("two processes were started as rank ", rank, ": ",
               members[static_cast<std::size_t>(rank)].tcp_address, " and ",
               join.member.tcp_address);
  return "";
}

// A rank that joined and gave up or died before everybody was there may come again.
void forget_dead(Meeting& meeting) {
  for (auto control = meeting.controls.begin(); control != meeting.controls.end();) {
    std::byte byte{};
    if (!control->second.recv_some(std::span(&byte, 1)).closed) {
      ++control;
      continue;
    }
    meeting.members[static_cast<std::size_t>(control->first)] = {};
    meeting.departed.push_back(static_cast<std::size_t>(control->first));
    control = meeting.controls.erase(control);
  }
}

void admit(const JoinOptions& options, Arrival arrival, Meeting& meeting) {
  if (arrival.intro.purpose == Purpose::kInspect) return;  // Nothing has happened yet.
  if (arrival.intro.purpose != Purpose::kControl) {
    meeting.early.push_back(std::move(arrival));
    return;
  }
  try {
    // It has proved that it belongs to the job; a second is plenty for the rest of its first
    // message.
    const Time deadline = Clock::now() + Millis{1000};
    const wire::Message message = recv_frame(arrival.connection, deadline);
    const auto* join = std::get_if<wire::Join>(&message);
    if (join == nullptr) throw ProtocolError("expected a join");
    // One that has given up and comes again at once was there at the last look.
    if (meeting.controls.contains(join->member.rank)) forget_dead(meeting);
    const HostPort here = local_address(arrival.connection.get());
    const std::string reason = objection(options, *join, meeting, here);
    if (!reason.empty()) {
      log_warning(options.rank, str("refused a rank: ", reason));
      send_frame(arrival.connection, wire::Refused{reason, false}, deadline);
      return;
    }
    wire::Member member = join->member;
    member.tcp_address = seen_over(link_of(here.host), member.tcp_address);
    const bool is_here = member.host_key == meeting.members[0].host_key;
    member.path_us = is_here ? 0 : path_us(arrival.connection.get());
    meeting.members[static_cast<std::size_t>(join->member.rank)] = std::move(member);
    meeting.modes[static_cast<std::size_t>(join->member.rank)] = join->mode;
    meeting.controls[join->member.rank] = std::move(arrival.connection);
  } catch (const Error& error) {
    log_warning(options.rank, str("a rank did not join properly: ", error.what()));
  }
}

// `host` is where the rendezvous leads from here. A name may mean loopback on its own host, as
// Debian's 127.0.1.1, and an address that others reach elsewhere: then all addresses.
Fd listen_for_ranks(const JoinOptions& options, const std::string& host, int port) {
  const std::string& name = options.rendezvous.host;
  const bool is_name = name != "localhost" && !resolve({name, 0}, AI_NUMERICHOST);
  if (options.interface.empty() && is_name && is_loopback(host))
    return listen_everywhere(port, kBacklog);
  return listen_tcp(options.interface.empty() ? host : interface_address(options.interface), port,
                    kBacklog);
}

// A world that met there before may just be going: its rank 0, if that was another process, closes
// its listener some time after the others have left.
Fd await_place_to_listen(const JoinOptions& options) {
  const Time deadline = Clock::now() + std::min<Clock::duration>(options.timeout, kTakenPatience);
  while (true) {
    try {
      return listen_for_ranks(options, options.rendezvous.host, options.rendezvous.port);
    } catch (const AddressTaken& taken) {
      if (Clock::now() >= deadline)
        throw InvalidArgument(str(taken.what(),
                                  "; end what listens there, or have the ranks meet "
                                  "at another port"));
    }
    ::poll(nullptr, 0, static_cast<int>(kRetryPause.count()));
    check_interrupt(options);
  }
}

// Ranks that came over loopback are on this host: others reach them where they have reached us.
void give_outward_addresses(Meeting& meeting) {
  std::string outward;
  for (const auto& [rank, control] : meeting.controls)
    if (const std::string here = local_address(control.get()).host; !is_loopback(here))
      outward = here;
  if (outward.empty()) return;
  for (const auto& [rank, control] : meeting.controls) {
    std::string& address = meeting.members[static_cast<std::size_t>(rank)].tcp_address;
    const HostPort own = parse_host_port(address);
    if (is_loopback(own.host)) address = to_text({outward, own.port});
  }
}

// A way was timed by the few packets of each rank's joining. Ranks of one host have the same one:
// that of whom the network has held up least.
void give_hosts_one_path(Meeting& meeting) {
  std::map<std::string, std::uint32_t> shortest;
  for (const wire::Member& member : meeting.members) {
    const auto [host, is_first] = shortest.try_emplace(member.host_key, member.path_us);
    if (!is_first) host->second = std::min(host->second, member.path_us);
  }
  for (wire::Member& member : meeting.members) member.path_us = shortest.at(member.host_key);
}

Meeting host_meeting(const JoinOptions& options) {
  Fd listener =
      options.listen_fd >= 0 ? adopt_listener(options.listen_fd) : await_place_to_listen(options);
  HostPort address = options.rendezvous;
  address.port = local_port(listener.get());
  Meeting meeting;
  meeting.session = random_session();
  meeting.costs = options.costs;
  meeting.streams = options.streams;
  meeting.members.resize(static_cast<std::size_t>(options.world_size));
  meeting.modes.resize(meeting.members.size(), options.mode);
  meeting.members[0] = describe_self(options, to_text(address));
  meeting.door = open_door(options, std::move(listener), meeting.members[0]);
  if (options.growth) meeting.meeting_point = options.growth->meeting_point;

  const Time deadline = Clock::now() + options.timeout;
  Time next_look{};
  while (!is_complete(meeting)) {
    if (Clock::now() >= deadline) give_up_waiting(options, meeting, address);
    if (options.growth && !meeting.departed.empty())
      throw NotMet(who_is_missing(meeting), {meeting.departed.begin(), meeting.departed.end()});
    std::vector<pollfd> polls;
    meeting.door->add_polls(polls);
    ::poll(polls.data(), polls.size(), 50);
    check_interrupt(options);
    for (Arrival& arrival : meeting.door->work(Clock::now()))
      admit(options, std::move(arrival), meeting);
    // A look at every rank for each that comes would be a look for each pair of them.
    if (!is_complete(meeting) && Clock::now() < next_look) continue;
    forget_dead(meeting);
    next_look = Clock::now() + kLookPause;
  }
  give_outward_addresses(meeting);
  give_hosts_one_path(meeting);
  welcome(meeting, deadline + options.timeout);
  return meeting;
}

wire::Message hear_of_others(const JoinOptions& options, Connection& control, Time deadline) {
  try {
    while (!control.wait_readable(std::min(deadline, Clock::now() + Millis{100})) &&
           Clock::now() < deadline)
      check_interrupt(options);
    return recv_frame(control, deadline);
  } catch (const TimedOut&) {  // Also in the middle of what rank 0 says.
    throw TimedOut(str("rank ", options.rank, ": joined at ", to_text(options.rendezvous),
                       ", but some other ranks did not come within ",
                       seconds_between(Time{}, Time{options.timeout}),
                       " s; rank 0's error names them"));
  } catch (const ProtocolError&) {
    throw PeerLost(0, str("rank 0 at ", to_text(options.rendezvous),
                          " ended, or gave up, before all ranks had joined; its log says why"));
  }
}

// Nothing while rank 0 is in another world; `why` is what it says of that.
std::optional<Meeting> try_to_join(const JoinOptions& options, Time deadline, std::string& why) {
  Connection control = find_host(options, deadline);
  const std::string host = options.interface.empty() ? local_address(control.get()).host
                                                     : interface_address(options.interface);
  Fd listener = listen_at_free_port(
      host, options.ports, [&](int port) { return listen_for_ranks(options, host, port); });
  const wire::Member self = describe_self(options, to_text({host, local_port(listener.get())}));
  Meeting meeting;
  meeting.door = open_door(options, std::move(listener), self);
  send_frame(control,
             wire::Join{static_cast<std::uint32_t>(options.world_size), self, options.mode},
             deadline);
  const wire::Message message = hear_of_others(options, control, deadline);
  if (const auto* refused = std::get_if<wire::Refused>(&message)) {
    if (!refused->may_come_again) throw InvalidArgument(refused->text);
    why = refused->text;
    return std::nullopt;
  }
  const auto* welcome = std::get_if<wire::Welcome>(&message);
  if (welcome == nullptr || welcome->members.size() != static_cast<std::size_t>(options.world_size))
    throw ProtocolError("the answer to a join is no welcome");
  meeting.session = welcome->session;
  meeting.members = welcome->members;
  for (wire::Member& member : meeting.members)
    member.tcp_address = seen_over(link_of(host), member.tcp_address);
  meeting.costs = welcome->costs;
  meeting.streams = welcome->streams;
  meeting.meeting_point = welcome->meeting_point;
  // Where rank 0 was found is where it can be reached, whatever it calls itself.
  meeting.members[0].tcp_address = to_text(options.rendezvous);
  meeting.controls[0] = std::move(control);
  return meeting;
}

Meeting join_meeting(const JoinOptions& options) {
  const Time deadline = Clock::now() + options.timeout;
  std::string why;
  while (true) {
    if (auto meeting = try_to_join(options, deadline, why)) return std::move(*meeting);
    check_interrupt(options);
    // A try that is cut off would look to rank 0 like one with another secret.
    if (Clock::now() + kRetryPause + kShortestTry >= deadline)
      throw TimedOut(str("rank ", options.rank, ": after ",
                         seconds_between(Time{}, Time{options.timeout}), " s rank 0 at ",
                         to_text(options.rendezvous), " still says: ", why));
    ::poll(nullptr, 0, static_cast<int>(kRetryPause.count()));
  }
}

}  // namespace

void welcome(Meeting& meeting, Time deadline) {
  // Encoded once: it is as long as there are ranks to send it to.
  const std::vector<std::byte> payload = wire::encode(wire::Welcome{
      meeting.session, meeting.members, meeting.costs, meeting.meeting_point, meeting.streams});
  for (auto& [rank, control] : meeting.controls) {
    try {
      send_payload(control, payload, deadline);
    } catch (const Error&) {
      // Others are in the world already, and hear of it as of any rank that is lost.
      ::shutdown(control.get(), SHUT_RDWR);
    }
  }
}

Meeting meet(const JoinOptions& options) {
  return options.rank == 0 ? host_meeting(options) : join_meeting(options);
}

}  // namespace gradring::transport
