// Server: one process's shards of the parameter server, a thread for each, and the door through
// which clients come. Callable from any thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ps/protocol/dial.h"
#include "ps/server/shard_loop.h"
#include "ps/server/snapshot_writer.h"
#include "transport/joining/rendezvous.h"

namespace gradring::ps {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 0;  // 0: a free one, of these.
  transport::PortRange ports;
  int listen_fd = -1;  // An inherited listening socket instead.
  std::uint32_t threads = 1;
  std::uint32_t index = 0;  // Of this server.
  std::uint32_t servers = 1;
  transport::Credentials credentials;
  transport::TransportMode mode = transport::TransportMode::kAuto;
  Millis client_grace{5000};
  std::string log_directory;   // Empty: no log; what is not in a checkpoint dies with the process.
  std::string fsync = "none";  // "none", "always" or milliseconds.
  bool waits_to_open = false;  // Clients wait until open(): tables are still to be loaded.
};

class Server {
 public:
  // Listens, and serves at once or after open(). Throws InvalidArgument that says what cannot be.
  explicit Server(const ServerOptions& options);
  ~Server();

  void open();
  // What it tells its clients of, who compare all servers: before open().
  void tell_beginning(Beginning beginning);

  const std::string& address() const { return address_; }
  std::uint32_t shards() const { return options_.threads; }  // Of this process.
  std::uint32_t first_shard() const { return options_.index * options_.threads; }

  // The next thing to do for a shard, outside; nothing after the timeout. Throws the failure that
  // stopped a shard, or Closed.
  std::optional<std::pair<std::uint32_t, Job>> next_job(Millis timeout);
  // Throws the failure that stopped a shard, if there is one.
  void check();
  // On the shard's own thread; shards by their global number. Throws InvalidArgument for one that
  // is not here, Closed after stop().
  void ask(std::uint32_t shard, const ShardLoop::Task& task);
  // Returns when what the shard was asked before is in its journal; of a load, when the journal has
  // what came of it. Throws as ask().
  void settle(std::uint32_t shard);
  // Writes the shard's snapshot into a file; throws as ask() does, and DeviceError.
  SnapshotWritten write_snapshot(const SnapshotHeader& header, const SnapshotFile& file);
  void finish_job(std::uint32_t shard, std::uint64_t cut, const std::string& result,
                  const Failure& failure);

  void stop();

 private:
  ShardLoop& loop_of(std::uint32_t shard);
  void open_door(std::unique_ptr<transport::Door>& door);
  ShardLoop::Hooks make_hooks();
  void arrived(transport::Arrival arrival);
  bool keeps_waiting(transport::Arrival& arrival);
  std::uint64_t next_incarnation();
  Bytes card();

  ServerOptions options_;
  std::uint64_t fork_generation_;
  std::uint64_t incarnation_ = 0;
  std::string address_;
  std::string unix_name_;
  std::vector<std::unique_ptr<ShardLoop>> loops_;

  std::mutex mutex_;  // Guards the rest.
  std::condition_variable changed_;
  std::deque<std::pair<std::uint32_t, Job>> jobs_;
  Failure failure_;
  bool is_stopped_ = false;
  std::uint64_t last_incarnation_ = 0;  // Given to a client.
  bool is_open_;
  Beginning beginning_;
  std::vector<transport::Arrival> early_;  // Until open().
  Time next_purge_{};                      // Of those in early_ that have hung up.
};

}  // namespace gradring::ps
