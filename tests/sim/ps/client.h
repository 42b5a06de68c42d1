// PsClient: a client process of the simulation. Drives a ClientCore over links of memory as the
// real client's driver does over sockets, and lets a program use it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ps/client/client_core.h"
#include "ps/client/plain_call.h"
#include "ps/protocol/frame_reader.h"
#include "sim/ps/network.h"
#include "sim/trace.h"
#include "support/ps/requests.h"

namespace gradring::sim {

using CallPtr = std::shared_ptr<ps::PlainCall>;

// A request and who gets it.
struct Addressed {
  std::uint32_t shard = 0;
  testing::Request request;
};

class PsClient {
 public:
  // `process`: a number nobody else has; also the incarnation, so that later ones replace earlier.
  PsClient(const PsScenario& scenario, std::uint32_t number, std::uint64_t process,
           PsNetwork& network, Trace& trace);

  std::uint32_t number() const { return number_; }
  std::uint64_t process() const { return process_; }
  std::uint32_t shards() const { return core_.shards(); }
  bool is_frozen = false;

  // Asks the shard's server for a connection; none if it is down.
  std::function<std::unique_ptr<transport::MemoryLink>(PsClient&, std::uint32_t shard)> dial;

  CallPtr submit(const std::string& what, const std::vector<Addressed>& requests,
                 bool may_wait = false);
  void submit(const CallPtr& call);
  CallPtr submit_to_all(const std::string& what, const testing::Request& request,
                        bool may_wait = false);
  bool step();
  Time next_event() const { return core_.next_tick(); }
  Time now() const { return network_.now(); }

 private:
  struct Connection {
    std::unique_ptr<transport::MemoryLink> link;
    ps::FrameReader reader;
  };

  void connect(std::uint32_t shard);
  void disconnect(std::uint32_t shard, const std::string& why);
  bool push(std::uint32_t shard);
  bool pull(std::uint32_t shard);

  const PsScenario& scenario_;
  std::uint32_t number_;
  std::uint64_t process_;
  PsNetwork& network_;
  Trace& trace_;
  ps::ClientCore core_;
  std::vector<Connection> connections_;
};

}  // namespace gradring::sim
