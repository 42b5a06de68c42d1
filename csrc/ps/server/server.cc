#include "ps/server/server.h"

#include <algorithm>

#include "base/config.h"
#include "base/log.h"
#include "ps/log/log_folder.h"
#include "transport/joining/handshake.h"
#include "transport/joining/host.h"
#include "transport/links/forks.h"
#include "transport/links/interrupts.h"

namespace gradring::ps {
namespace {

using transport::Fd;
using transport::Purpose;

constexpr int kBacklog = 1024;
constexpr Millis kPurgeTime{100};
constexpr Millis kLoadLookTime{2};

class LogJournal final : public DurableJournal {
 public:
  explicit LogJournal(const LogFolderOptions& options) : folder_(options) {}
  void append(const wire::PsHeader& header, std::span<const std::byte> payload,
              std::uint32_t client, std::uint64_t incarnation) override {
    folder_.append(header, payload, client, incarnation);
  }
  void sync(Time now) override { folder_.sync(now); }
  void replay(Shard& shard) override { folder_.replay(shard); }

 private:
  LogFolder folder_;
};

// Without a log: what is not in a checkpoint dies with the process.
class NoJournal final : public DurableJournal {
 public:
  void append(const wire::PsHeader&, std::span<const std::byte>, std::uint32_t,
              std::uint64_t) override {}
  void sync(Time) override {}
  void replay(Shard&) override {}
};

std::string random_name(const wire::SessionId& random) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string name = "gradring-ps-";
  for (const std::byte byte : random) {
    name += kDigits[std::to_integer<unsigned>(byte) >> 4];
    name += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return name;
}

std::unique_ptr<DurableJournal> make_journal(const ServerOptions& options,
                                             const ShardOptions& shard) {
  if (options.log_directory.empty()) return std::make_unique<NoJournal>();
  LogFolderOptions log;
  log.folder = options.log_directory;
  log.shard = shard.shard;
  log.shards = shard.shards;
  log.fsync = parse_fsync_policy(options.fsync);
  return std::make_unique<LogJournal>(log);
}

void require_valid(const ServerOptions& options) {
  if (options.threads == 0 || options.servers == 0 || options.index >= options.servers)
    throw InvalidArgument(str("server ", options.index, " of ", options.servers, " with ",
                              options.threads, " threads: there is no such server"));
  if (std::uint64_t{options.servers} * options.threads > limits::kPsShards)
    throw InvalidArgument(str(options.servers, " servers with ", options.threads,
                              " threads: more than ", limits::kPsShards, " shards"));
}

}  // namespace

Server::Server(const ServerOptions& options)
    : options_(options),
      fork_generation_(transport::watch_forks()),
      is_open_(!options.waits_to_open) {
  require_valid(options_);
  const wire::SessionId random = transport::random_session();
  for (std::size_t at = 0; at < sizeof incarnation_; ++at)
    incarnation_ = incarnation_ << 8 | std::to_integer<std::uint64_t>(random[at]);
  unix_name_ = options_.mode == transport::TransportMode::kTcp ? "" : random_name(random);
  std::unique_ptr<transport::Door> door;
  open_door(door);
  for (std::uint32_t thread = 0; thread < options_.threads; ++thread) {
    ShardOptions shard;
    shard.shard = first_shard() + thread;
    shard.shards = options_.servers * options_.threads;
    shard.incarnation = incarnation_;
    shard.client_grace = options_.client_grace;
    loops_.push_back(std::make_unique<ShardLoop>(shard, make_journal(options_, shard),
                                                 std::move(door), make_hooks()));
  }
  try {
    for (const auto& loop : loops_) loop->start();
  } catch (...) {
    // Those that run use what is destroyed before they are.
    for (const auto& loop : loops_) loop->stop();
    throw;
  }
}

Server::~Server() {
  stop();
}

void Server::open_door(std::unique_ptr<transport::Door>& door) {
  const auto listen = [this](int port) {
    return transport::listen_tcp(options_.host, port, kBacklog);
  };
  Fd tcp;
  if (options_.listen_fd >= 0)
    tcp = transport::adopt_listener(options_.listen_fd);
  else if (options_.port != 0)
    tcp = listen(options_.port);
  else
    tcp = transport::listen_at_free_port(options_.host, options_.ports, listen);
  Fd local = unix_name_.empty() ? Fd() : transport::listen_unix(unix_name_, kBacklog);
  const transport::HostPort bound = transport::local_address(tcp.get());
  // What was asked for is what the others can reach; only the port may be new.
  address_ = transport::to_text({options_.listen_fd >= 0 ? bound.host : options_.host, bound.port});
  door =
      std::make_unique<transport::Door>(std::move(tcp), std::move(local), options_.credentials, -1);
}

ShardLoop::Hooks Server::make_hooks() {
  ShardLoop::Hooks hooks;
  hooks.arrived = [this](transport::Arrival arrival) { arrived(std::move(arrival)); };
  hooks.job = [this](std::uint32_t shard, Job job) {
    const std::lock_guard lock(mutex_);
    jobs_.emplace_back(shard, std::move(job));  // Each shard bounds its own.
    changed_.notify_all();
  };
  hooks.failed = [this](std::uint32_t, const Failure& failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = failure;
    changed_.notify_all();
  };
  return hooks;
}

void Server::open() {
  std::vector<transport::Arrival> early;
  {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    early.swap(early_);
  }
  for (transport::Arrival& arrival : early) arrived(std::move(arrival));
}

void Server::tell_beginning(Beginning beginning) {
  const std::lock_guard lock(mutex_);
  beginning_ = std::move(beginning);
}

Bytes Server::card() {
  const std::uint64_t incarnation = next_incarnation();
  const std::lock_guard lock(mutex_);
  return encode_card(
      {incarnation_,
       options_.threads,
       incarnation,
       {first_shard(), options_.servers * options_.threads, transport::host_key(), unix_name_},
       beginning_});
}

bool Server::keeps_waiting(transport::Arrival& arrival) {
  const std::lock_guard lock(mutex_);
  if (is_open_) return false;
  // Who had no answer in time has hung up, and asks again.
  if (const Time now = Clock::now(); now >= next_purge_) {
    next_purge_ = now + kPurgeTime;
    std::erase_if(early_,
                  [](const auto& early) { return transport::has_hung_up(early.connection.get()); });
  }
  early_.push_back(std::move(arrival));
  return true;
}

// The time, or what comes after all that were given, also by a process before this one: clocks are
// set back.
std::uint64_t Server::next_incarnation() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  auto next = static_cast<std::uint64_t>(std::chrono::nanoseconds(now).count());
  for (const auto& loop : loops_) next = std::max(next, loop->newest_incarnation() + 1);
  const std::lock_guard lock(mutex_);
  last_incarnation_ = std::max(next, last_incarnation_ + 1);
  return last_incarnation_;
}

// On the first shard's thread; those that came early on that of open().
void Server::arrived(transport::Arrival arrival) {
  const transport::Intro& intro = arrival.intro;
  const bool is_client =
      intro.purpose == Purpose::kParameters || intro.purpose == Purpose::kSharedParameters;
  if (is_client && keeps_waiting(arrival)) return;
  const std::int64_t here = std::int64_t{intro.to} - first_shard();
  if (intro.purpose == Purpose::kParameters && intro.to == -1) {
    // What an empty connection always has room for.
    arrival.connection.send_some(card());
  } else if (!is_client || here < 0 || here >= std::int64_t{options_.threads}) {
    log_warning_once(
        -1, "ps arrival",
        str("refused a connection from ", transport::peer_text(arrival.connection.get()),
            ": it is for shard ", intro.to, ", which is not here"));
  } else {
    loops_[static_cast<std::size_t>(here)]->deliver(std::move(arrival));
  }
}

std::optional<std::pair<std::uint32_t, Job>> Server::next_job(Millis timeout) {
  const Time deadline = Clock::now() + timeout;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      const auto slice = std::chrono::duration_cast<Millis>(deadline - Clock::now());
      changed_.wait_for(lock, std::clamp(slice, Millis{0}, limits::kSleepSlice),
                        [&] { return !jobs_.empty() || failure_ || is_stopped_; });
      if (failure_) failure_.raise();
      if (is_stopped_) throw Closed("this server of parameters has stopped");
      if (!jobs_.empty()) {
        auto job = std::move(jobs_.front());
        jobs_.pop_front();
        return job;
      }
    }
    transport::run_interrupt_check();
    if (Clock::now() >= deadline) return std::nullopt;
  }
}

void Server::check() {
  const std::lock_guard lock(mutex_);
  if (failure_) failure_.raise();
}

ShardLoop& Server::loop_of(std::uint32_t shard) {
  if (shard < first_shard() || shard >= first_shard() + options_.threads)
    throw InvalidArgument(str("shard ", shard, " is not on this server, which has ",
                              options_.threads, " from ", first_shard()));
  if (transport::fork_generation() != fork_generation_)
    throw Closed("this server of parameters belongs to the parent process");
  return *loops_[shard - first_shard()];
}

void Server::ask(std::uint32_t shard, const ShardLoop::Task& task) {
  loop_of(shard).ask(task);
}

void Server::settle(std::uint32_t shard) {
  ShardLoop& loop = loop_of(shard);
  const auto begun = loop.begin(
      [](Shard& owner, Time) -> std::optional<Time> {
        if (!owner.holds_changes()) return std::nullopt;
        return Clock::now() + kLoadLookTime;
      },
      Time{});
  loop.finish(*begun);
}

SnapshotWritten Server::write_snapshot(const SnapshotHeader& header, const SnapshotFile& file) {
  return ps::write_snapshot(loop_of(header.shard), header, file);
}

void Server::finish_job(std::uint32_t shard, std::uint64_t cut, const std::string& result,
                        const Failure& failure) {
  ask(shard, [&](Shard& owner, std::vector<Answer>& answers) {
    owner.finish_job(cut, result, failure, answers);
  });
}

void Server::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
    changed_.notify_all();
  }
  for (const auto& loop : loops_) loop->stop();
}

}  // namespace gradring::ps
