// How ranks meet: rank 0 listens where everybody was told to look, the others come, prove
// themselves, and say where they can be reached; when all are there, everybody gets the table.
// Blocks the thread that calls init, until its deadline.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/link_costs.h"
#include "base/record.h"
#include "transport/joining/door.h"
#include "transport/joining/free_port.h"
#include "transport/joining/lobby.h"
#include "transport/links/socket.h"
#include "wire/messages.h"

namespace gradring::transport {

using wire::TransportMode;

// What is different where ranks of one world and newcomers meet to make a larger one: who joins and
// goes again ends it, as they try once more without that rank.
struct Growth {
  Millis patience{0};              // For the ranks to meet, instead of the timeout.
  std::shared_ptr<Lobby> lobby;    // Rank 0: that of the world before, which goes on in this one,
  std::string meeting_point = {};  // and where newcomers find it.
};

struct JoinOptions {
  Rank rank = 0;
  Rank world_size = 1;
  HostPort rendezvous;
  bool is_open_alone = false;  // A world of one listens there too, for newcomers.
  int listen_fd = -1;  // Rank 0: a socket that listens at `rendezvous` already. Ownership passes.
  Credentials credentials;
  std::string interface;   // NAME or CIDR; empty: by the route to the rendezvous.
  PortRange ports;         // Ranks but 0 listen at a free one of them.
  std::string host_label;  // Sets processes of one machine apart as if they ran on several: for
                           // tests of what crosses hosts.
  TransportMode mode = TransportMode::kAuto;
  std::uint32_t link_mbit = 0;  // What this host's link may send, for wire::Member.
  Millis timeout{30000};
  Millis heartbeat_timeout{5000};
  RecordOptions record;
  CostProfile costs;          // Rank 0's. The others hear of it, whatever they have here.
  std::uint32_t streams = 1;  // The same: connections of a link between hosts, at most kStreams.
  std::function<void()> check_interrupt;  // Called a few times a second while waiting; may throw.
  std::optional<Growth> growth;
};

// Not all came, or stayed.
struct NotMet : TimedOut {
  NotMet(const std::string& text, std::vector<Rank> ranks)
      : TimedOut(text), missing(std::move(ranks)) {}
  std::vector<Rank> missing;
};

struct Meeting {
  std::unique_ptr<Door> door;
  std::map<Rank, Connection> controls;  // Rank 0: one from each other rank. Others: to rank 0.
  std::vector<wire::Member> members;    // By rank.
  std::vector<TransportMode> modes;     // The same; rank 0's knowledge.
  wire::SessionId session{};
  CostProfile costs;                  // Rank 0's, as the next.
  std::uint32_t streams = 1;          // Connections of a link between hosts.
  std::vector<Arrival> early;         // Connections that came while we were still meeting.
  std::vector<std::size_t> departed;  // Ranks that joined and did not wait; they may come again.
  std::string meeting_point;          // As in wire::Welcome.
};

Meeting meet(const JoinOptions& options);
// A connection to whoever listens at the rendezvous, which has shaken hands: as `options.rank`, or
// as a newcomer where that is -1. Tries again and again; throws as meet does.
Connection find_host(const JoinOptions& options, Time deadline);
// Rank 0's last word in there: tells all others who is there. The connection of one that has given
// up or died since, or does not read, ends.
void welcome(Meeting& meeting, Time deadline);

}  // namespace gradring::transport
