#include "ps/protocol/dial.h"

#include <poll.h>

#include <algorithm>

#include "base/config.h"
#include "base/error.h"
#include "transport/joining/host.h"
#include "transport/links/interrupts.h"
#include "transport/links/pass_fd.h"
#include "transport/links/resolve.h"
#include "transport/links/shm_link.h"
#include "transport/links/tcp_link.h"

namespace gradring::ps {
namespace {

using transport::Intro;
using transport::Purpose;
using transport::TransportMode;

constexpr std::uint64_t kCardBytes = 16384;
constexpr Millis kAskTime{2000};
constexpr int kAgainMs = 20;

transport::Connection reach(const std::string& address, const transport::Credentials& credentials,
                            const Intro& intro, Time deadline) {
  std::string why;
  transport::Connection connection =
      transport::connect_tcp(transport::parse_host_port(address), deadline, why);
  if (!connection) throw PeerLost(-1, why);
  transport::shake_hands(connection, credentials, intro, deadline);
  return connection;
}

Intro intro_to(Purpose purpose, std::int32_t shard) {
  return {purpose, 0, -1, shard, 0, {}};
}

Bytes read_frame(transport::Connection& from, wire::PsType type, wire::PsHeader& header,
                 Time deadline) {
  wire::PsHeaderBytes head;
  from.recv_all(head, deadline);
  header = wire::decode_ps_header(head);
  if (header.type != type || header.payload_bytes > kCardBytes)
    throw ProtocolError("it is no server of parameters");
  Bytes payload(static_cast<std::size_t>(header.payload_bytes));
  from.recv_all(payload, deadline);
  return payload;
}

ServerCard read_card(transport::Connection& from, Time deadline) {
  wire::PsHeader header;
  const Bytes payload = read_frame(from, wire::PsType::kWelcome, header, deadline);
  if (header.b == 0) throw ProtocolError("it is no server of parameters");
  ServerCard card{header.a, header.count, header.b, decode_welcome(payload), {header.seq, ""}};
  if (card.beginning.cut != 0)
    card.beginning.place = decode_text(read_frame(from, wire::PsType::kText, header, deadline));
  return card;
}

// What goes wrong on the way says only that there is no connection.
template <typename Talk>
auto or_lost(const Talk& talk) {
  try {
    return talk();
  } catch (const wire::OtherBuild&) {
    throw;
  } catch (const ProtocolError& error) {
    throw PeerLost(-1, error.what());
  } catch (const TimedOut& error) {
    throw PeerLost(-1, error.what());
  }
}

std::unique_ptr<transport::Link> share_memory(const std::string& unix_name,
                                              const transport::Credentials& credentials,
                                              std::uint32_t shard, Time deadline) {
  std::string why;
  int error = 0;
  transport::Connection connection = transport::connect_unix(unix_name, deadline, why, &error);
  if (!connection) throw PeerLost(-1, str("its Unix socket: ", why, transport::limit_hint(error)));
  transport::shake_hands(connection, credentials,
                         intro_to(Purpose::kSharedParameters, static_cast<std::int32_t>(shard)),
                         deadline);
  auto memory = transport::SharedMemory::create(transport::ShmLink::kMemoryBytes);
  transport::send_fd(connection.get(), memory.fd(), deadline);
  return std::make_unique<transport::ShmLink>(std::move(memory), connection.take_fd(), true);
}

std::string text_of(const Beginning& beginning) {
  if (beginning.cut == 0) return "no checkpoint";
  return str("the checkpoint ", beginning.place, " (cut ", beginning.cut, ")");
}

void require_same(const std::string& first, const Beginning& of_first, const std::string& address,
                  const Beginning& beginning) {
  if (of_first.cut == beginning.cut) return;
  throw Mismatch(str("the parameter server at ", first, " began with ", text_of(of_first),
                     ", and the one at ", address, " with ", text_of(beginning),
                     ": their tables are not of one moment. Start all servers with the same ",
                     "--load, those with a log with an empty one or one that began so, or all ",
                     "without"));
}

}  // namespace

ServerCard ask_server(const std::string& address, const transport::Credentials& credentials,
                      Time deadline) {
  return or_lost([&] {
    transport::Connection connection =
        reach(address, credentials, intro_to(Purpose::kParameters, -1), deadline);
    return read_card(connection, deadline);
  });
}

std::unique_ptr<transport::Link> dial_shard(const std::string& address,
                                            const transport::Credentials& credentials,
                                            std::uint32_t shard, TransportMode mode,
                                            Time deadline) {
  return or_lost([&]() -> std::unique_ptr<transport::Link> {
    if (mode != TransportMode::kTcp) {
      // Asked anew each time: a server that was started again has another socket.
      const Welcome server = ask_server(address, credentials, deadline).welcome;
      const bool is_here = !server.unix_name.empty() && server.host_key == transport::host_key();
      if (is_here) return share_memory(server.unix_name, credentials, shard, deadline);
      if (mode == TransportMode::kShm)
        throw InvalidArgument(str("transport 'shm': the server at ", address,
                                  " is on another host, or takes no shared memory; use 'auto'"));
    }
    transport::Connection connection =
        reach(address, credentials,
              intro_to(Purpose::kParameters, static_cast<std::int32_t>(shard)), deadline);
    transport::end_with_silence(connection.get(), limits::kPsSilence);
    return std::make_unique<transport::TcpLink>(std::move(connection));
  });
}

FoundShards find_shards(const std::vector<std::string>& named,
                        const transport::Credentials& credentials, Millis timeout) {
  const auto servers = static_cast<std::uint32_t>(named.size());
  if (servers == 0) throw InvalidArgument("no server of parameters is named");
  const Time deadline = Clock::now() + timeout;
  FoundShards found;
  std::string first;  // Of those that know what they began with.
  Beginning beginning;
  for (std::uint32_t index = 0; index < servers; ++index) {
    const std::string& address = named[index];
    ServerCard card;
    while (true) {
      try {
        card = ask_server(address, credentials, std::min(deadline, Clock::now() + kAskTime));
        break;
      } catch (const AuthError& error) {
        throw AuthError(str("connecting to the parameter server at ", address, ": ", error.what()));
      } catch (const wire::OtherBuild& error) {
        throw wire::OtherBuild(str("this process and the parameter server at ", address,
                                   " do not understand each other: ", error.what()));
      } catch (const PeerLost& error) {
        // It may be about to start.
        if (Clock::now() + Millis{50} > deadline)
          throw PeerLost(-1, str("no parameter server at ", address, " within ", timeout.count(),
                                 " ms: ", error.what()));
        ::poll(nullptr, 0, kAgainMs);
        transport::run_interrupt_check();
      }
    }
    const Welcome& welcome = card.welcome;
    const std::uint64_t each = card.threads;
    if (each == 0 || welcome.shards > limits::kPsShards || welcome.shards != each * servers ||
        welcome.shard != each * index)
      throw Mismatch(str("the parameter server at ", address, " has the shards from ",
                         welcome.shard, " of ", welcome.shards, ", which does not fit server ",
                         index, " of ", servers,
                         ": name all servers, in the order of their numbers"));
    // Each of them fits where it stands.
    if (found.addresses.size() != each * index)
      throw Mismatch(str("the parameter server at ", address, " has ", each,
                         " threads, and that at ", named.front(), " has ",
                         found.addresses.size() / index,
                         ": start all servers with the same --threads"));
    if (card.beginning.cut != Beginning::kUnknown) {
      if (first.empty()) {
        first = address;
        beginning = card.beginning;
      }
      require_same(first, beginning, address, card.beginning);
    }
    found.addresses.insert(found.addresses.end(), each, address);
    found.incarnation = std::max(found.incarnation, card.next_incarnation);
  }
  return found;
}

Bytes encode_card(const ServerCard& card) {
  const Bytes payload = encode(card.welcome);
  wire::PsHeader header;
  header.type = wire::PsType::kWelcome;
  header.a = card.incarnation;
  header.b = card.next_incarnation;
  header.seq = card.beginning.cut;
  header.count = card.threads;
  header.payload_bytes = payload.size();
  Bytes bytes;
  put_bytes(bytes, wire::encode(header));
  put_bytes(bytes, payload);
  if (card.beginning.cut == 0) return bytes;
  const Bytes place = encode_text(card.beginning.place.substr(0, limits::kTextBytes));
  wire::PsHeader text;
  text.type = wire::PsType::kText;
  text.payload_bytes = place.size();
  put_bytes(bytes, wire::encode(text));
  put_bytes(bytes, place);
  return bytes;
}

}  // namespace gradring::ps
