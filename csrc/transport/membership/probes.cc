#include "transport/membership/probes.h"

#include <cerrno>
#include <utility>

#include "transport/links/resolve.h"
#include "transport/links/socket.h"

namespace gradring::transport {

void Probes::ask(Rank rank, const wire::Member& member) {
  if (under_way_.contains(rank)) return;
  int error = 0;
  Fd fd = begin_connect_tcp(parse_host_port(member.tcp_address), error);
  if (error == ECONNREFUSED) refused_.push_back(rank);
  if (fd) under_way_.emplace(rank, std::move(fd));
}

void Probes::add_polls(std::vector<pollfd>& polls) const {
  for (const auto& [rank, fd] : under_way_) polls.push_back({fd.get(), POLLOUT, 0});
}

std::vector<Rank> Probes::work() {
  std::erase_if(under_way_, [this](const auto& probe) {
    pollfd entry{probe.second.get(), POLLOUT, 0};
    if (::poll(&entry, 1, 0) <= 0) return false;
    if (connect_error(entry.fd) == ECONNREFUSED) refused_.push_back(probe.first);
    return true;
  });
  return std::exchange(refused_, {});
}

}  // namespace gradring::transport
