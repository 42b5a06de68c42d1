#include "transport/links/resolve.h"

#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/text.h"
#include "transport/links/forks.h"

namespace gradring::transport {
namespace {

// Of one name. Its thread writes it once; those who wait for it read it.
struct Answer {
  bool has_come = false;
  AddressList list;
  std::string problem;  // Why nobody looks it up; empty: somebody does.
};

// All look-ups of this process that somebody may still ask for. Never freed: a thread that hangs in
// one may be the last to end.
struct Lookups {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::shared_ptr<Answer>> under_way;
};

Lookups& lookups() {
  static Lookups* const all = new Lookups;
  return *all;
}

// Under the mutex.
std::shared_ptr<Answer> begin(const HostPort& address, const Lookup& look_up) {
  Lookups& all = lookups();
  // A forked child has none of its parent's threads.
  const std::string name = str(to_text(address), " of process ", watch_forks());
  if (const auto known = all.under_way.find(name); known != all.under_way.end())
    return known->second;
  auto answer = std::make_shared<Answer>();
  const auto work = [address, look_up, name, answer] {
    AddressList list = look_up(address);
    const std::lock_guard lock(lookups().mutex);
    answer->list = std::move(list);
    answer->has_come = true;
    lookups().under_way.erase(name);
    lookups().changed.notify_all();
  };
  try {
    std::thread(work).detach();
    all.under_way.emplace(name, answer);
  } catch (const std::system_error& error) {
    answer->has_come = true;
    answer->problem =
        str("no thread to look the name '", address.host, "' up with: ", error.what());
  }
  return answer;
}

}  // namespace

std::string scope_text(const sockaddr_in6& address) {
  std::array<char, IF_NAMESIZE> name{};
  if (!IN6_IS_ADDR_LINKLOCAL(&address.sin6_addr) || address.sin6_scope_id == 0) return "";
  if (::if_indextoname(address.sin6_scope_id, name.data()) == nullptr)
    return str('%', address.sin6_scope_id);
  return str('%', name.data());
}

std::string limit_hint(int error, const char* whose) {
  if (error == EMFILE) return str("; see ", whose, " process's ulimit -n");
  if (error == ENFILE) return str("; see ", whose, " host's fs.file-max");
  return "";
}

std::string address_problem(int error, const addrinfo& entry) {
  if (error != EINVAL || entry.ai_family != AF_INET6) return errno_text(error);
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(*entry.ai_addr);
  if (!IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr) || v6.sin6_scope_id != 0) return errno_text(error);
  return "a link-local address needs the name of its interface behind it, as %eth0";
}

std::string connect_problem(int error, const addrinfo& entry) {
  std::string text = address_problem(error, entry);
  // What routes of the kinds "blackhole" and "prohibit" say.
  if (error == EACCES || error == EPERM || (error == EINVAL && text == errno_text(EINVAL)))
    text += ", by a route or a firewall rule of this host";
  return text + limit_hint(error);
}

std::string why_none_answered(std::span<const TriedAddress> tried) {
  if (tried.empty()) return "it has no address";
  const auto differs = [&](const TriedAddress& one) { return one.why != tried.front().why; };
  if (std::none_of(tried.begin(), tried.end(), differs)) return tried.front().why;
  std::string text;
  for (const TriedAddress& one : tried) {
    std::array<char, NI_MAXHOST> host{};
    ::getnameinfo(one.entry->ai_addr, one.entry->ai_addrlen, host.data(), host.size(), nullptr, 0,
                  NI_NUMERICHOST);
    text += str(text.empty() ? "" : ", ", host.data(), ": ", one.why);
  }
  return text;
}

AddressList resolve(const HostPort& address, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  const std::string port = str(address.port);
  if (::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &list) != 0) return nullptr;
  return {list, &::freeaddrinfo};
}

AddressList resolve_by(const HostPort& address, Time deadline, std::string& why,
                       const Lookup& look_up) {
  Lookups& all = lookups();
  std::unique_lock lock(all.mutex);
  const std::shared_ptr<Answer> answer = begin(address, look_up);
  all.changed.wait_until(lock, deadline, [&] { return answer->has_come; });
  if (!answer->has_come)
    why = str("looking up the name '", address.host, "' takes too long: is its name server there?");
  else if (!answer->problem.empty())
    why = answer->problem;
  else if (!answer->list)
    why = str("the name '", address.host, "' does not resolve");
  return answer->list;
}

AddressList resolve_by(const HostPort& address, Time deadline, std::string& why) {
  if (AddressList numbers = resolve(address, AI_NUMERICHOST)) return numbers;
  return resolve_by(address, deadline, why, [](const HostPort& name) { return resolve(name, 0); });
}

}  // namespace gradring::transport
