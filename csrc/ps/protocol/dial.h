// Connections to servers of parameters: asks who is there, and makes a link to a shard, through
// shared memory where both are on one host. Used by the client's driver; blocks for at most the
// given time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ps/protocol/payloads.h"
#include "transport/joining/rendezvous.h"
#include "transport/links/link.h"

namespace gradring::ps {

// The checkpoint that a server had before its first client came.
struct Beginning {
  static constexpr std::uint64_t kUnknown = ~std::uint64_t{0};

  std::uint64_t cut = 0;  // 0: it began with nothing. kUnknown: with one whose number is not known.
  std::string place;      // For people.
};

// What the server answers to a connection to shard -1: `shard` is its first one.
struct ServerCard {
  std::uint64_t incarnation = 0;
  std::uint32_t threads = 1;  // So many shards are there.
  // For a client that comes now: nanoseconds by the server's clock, and more than any before.
  std::uint64_t next_incarnation = 0;
  Welcome welcome;
  Beginning beginning;
};

// Both throw AuthError (another secret), wire::OtherBuild, or PeerLost that says why there is no
// connection.
ServerCard ask_server(const std::string& address, const transport::Credentials& credentials,
                      Time deadline);
std::unique_ptr<transport::Link> dial_shard(const std::string& address,
                                            const transport::Credentials& credentials,
                                            std::uint32_t shard, transport::TransportMode mode,
                                            Time deadline);

struct FoundShards {
  std::vector<std::string> addresses;  // Of every shard's server, by shard.
  // The latest of the servers', for a client's hello: one that starts again, also on a host whose
  // clock is behind, replaces the one it was.
  std::uint64_t incarnation = 0;
};

// `servers` is in the order of their numbers; waits until all of them have started. Throws
// AuthError, wire::OtherBuild, Mismatch (others are there than were named, or they began with
// different checkpoints), or PeerLost.
FoundShards find_shards(const std::vector<std::string>& servers,
                        const transport::Credentials& credentials, Millis timeout);

// The server's half, once the handshake is done.
Bytes encode_card(const ServerCard& card);

}  // namespace gradring::ps
