// How ranks meet: rank 0 listens where everybody was told to look, the others come, prove
// themselves, and say where they can be reached; when all are there, everybody gets the table.
// Blocks the thread that calls init, until its deadline.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/link_costs.h"
#include "base/record.h"
#include "transport/joining/door.h"
#include "transport/links/free_port.h"
#include "transport/links/socket.h"
#include "wire/messages.h"

namespace gradring::transport {

using wire::TransportMode;

struct JoinOptions {
  Rank rank = 0;
  Rank world_size = 1;
  HostPort rendezvous;
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
  CostProfile costs;  // Rank 0's. The others hear of it, whatever they have here.
  std::function<void()> check_interrupt;  // Called a few times a second while waiting; may throw.
};

struct Meeting {
  std::unique_ptr<Door> door;
  std::map<Rank, Connection> controls;  // Rank 0: one from each other rank. Others: to rank 0.
  std::vector<wire::Member> members;    // By rank.
  std::vector<TransportMode> modes;     // The same; rank 0's knowledge.
  wire::SessionId session{};
  CostProfile costs;                  // Rank 0's.
  std::vector<Arrival> early;         // Connections that came while we were still meeting.
  std::vector<std::size_t> departed;  // Ranks that joined and did not wait; they may come again.
};

Meeting meet(const JoinOptions& options);
// Rank 0's last word in there: tells all others who is there. The connection of one that has given
// up or died since, or does not read, ends.
void welcome(Meeting& meeting, Time deadline);

}  // namespace gradring::transport
