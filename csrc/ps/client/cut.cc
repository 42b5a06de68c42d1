#include "ps/client/cut.h"

#include <algorithm>
#include <random>

#include "ps/client/plain_call.h"

namespace gradring::ps {
namespace {

using wire::PsHeader;
using wire::PsType;
using Answers = std::vector<PlainCall::Answered>;

constexpr Millis kLetGoTime{2000};

std::uint64_t new_number() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}

PsHeader header_of(PsType type, std::uint64_t number, std::uint64_t b = 0) {
  PsHeader header;
  header.type = type;
  header.a = number;
  header.b = b;
  return header;
}

// One request to each of the first shards, with a payload of its own.
Answers ask_some(Client& client, std::uint32_t shards, const std::string& what,
                 const PsHeader& header, const std::vector<Bytes>& payloads, Millis timeout) {
  const bool may_wait = header.type == PsType::kAdvance || header.type == PsType::kJob;
  const auto call = std::make_shared<PlainCall>(what, may_wait);
  for (std::uint32_t shard = 0; shard < shards; ++shard)
    call->add(shard, header, payloads.empty() ? Bytes{} : payloads[shard]);
  client.run(call, timeout);
  return call->answers();
}

Answers ask(Client& client, const std::string& what, const PsHeader& header,
            const std::vector<Bytes>& payloads, Millis timeout) {
  return ask_some(client, client.shards(), what, header, payloads, timeout);
}

// The same to each of them, whatever becomes of the others: what may stay behind on none. Throws
// the first failure, once all are done.
void tell_each(Client& client, const std::string& what, const PsHeader& header,
               const Bytes& payload) {
  std::vector<std::shared_ptr<PlainCall>> calls;
  for (std::uint32_t shard = 0; shard < client.shards(); ++shard) {
    calls.push_back(std::make_shared<PlainCall>(what));
    calls.back()->add(shard, header, payload);
    calls.back()->make_hint();
    calls.back()->go_along();  // With the load: it waits for no room.
    client.start(calls.back(), kLetGoTime);
  }
  Failure first;
  for (const auto& call : calls) {
    try {
      client.wait(call, 2 * kLetGoTime);  // Its own time ends it.
    } catch (const Error& error) {
      if (!first) first = Failure::from(error);
    }
  }
  if (first) first.raise();
}

void require_type(const Answers& answers, PsType type) {
  for (const auto& answer : answers)
    if (answer.header.type != type) throw ProtocolError("a checkpoint: an answer of another kind");
}

std::vector<Bytes> encode_jobs(const CutRequest& request) {
  std::vector<Bytes> payloads;
  for (std::size_t shard = 0; shard < request.jobs.size(); ++shard) {
    wire::Writer base;
    const TableStamps none;
    const TableStamps& stamps = request.bases.empty() ? none : request.bases[shard];
    base.put(static_cast<std::uint32_t>(stamps.size()));
    for (const auto& [table, stamp] : stamps) {
      base.put(table);
      base.put(stamp);
    }
    Bytes& payload = payloads.emplace_back();
    put_bytes(payload, base.take());
    put_bytes(payload, encode_text(request.jobs[shard]));
  }
  return payloads;
}

TableStamps decode_stamps(std::span<const std::byte> payload) {
  wire::Reader in(payload);
  TableStamps stamps;
  const std::uint32_t count = in.get_count(1u << 16);
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto table = in.get<std::uint64_t>();
    stamps[table] = in.get<std::uint64_t>();
  }
  in.finish();
  return stamps;
}

void begin_jobs(Client& client, std::uint64_t number, const std::vector<Bytes>& payloads,
                Millis timeout) {
  require_type(ask(client, "load", header_of(PsType::kLoad, number), payloads, timeout),
               PsType::kDone);
}

void require_all(const Client& client, std::size_t jobs, const char* what) {
  if (jobs != client.shards())
    throw InvalidArgument(str(what, ": ", jobs, " jobs for ", client.shards(), " shards"));
}

// Holds everybody at one cut while it lives, and lets go of what was not cut.
class Freeze {
 public:
  Freeze(Client& client, std::uint64_t number, const CutRequest& request)
      : client_(client), number_(number), request_(request) {}
  ~Freeze() {
    if (is_cut_) return;
    try {
      tell_each(client_, "a checkpoint's thaw", header_of(PsType::kThaw, number_), {});
    } catch (const std::exception&) {
      // It melts by itself.
    }
  }
  Freeze(const Freeze&) = delete;
  Freeze& operator=(const Freeze&) = delete;

  Cut cut() {
    const auto limit = static_cast<std::uint64_t>(request_.freeze.count());
    const PsHeader freeze = header_of(PsType::kFreeze, number_, limit);
    // Of those who begin at once the first shard takes one. If all shards were asked together, each
    // could take another one, and all would be refused.
    ask_some(client_, 1, "a checkpoint's freeze", freeze, {}, request_.timeout);
    const Answers frozen = ask(client_, "a checkpoint's freeze", freeze, {}, request_.timeout);
    require_type(frozen, PsType::kFrozen);
    Cut cut{number_, {}, {}};
    std::vector<std::vector<Position>> positions;
    for (const auto& answer : frozen) {
      cut.lineages.push_back(answer.header.b);
      positions.push_back(decode_positions(answer.payload));
    }
    advance(targets_of(positions), limit);
    const Answers done = ask(client_, "a checkpoint's cut", header_of(PsType::kCut, number_),
                             encode_jobs(request_), request_.timeout);
    require_type(done, PsType::kDone);
    is_cut_ = true;
    for (const auto& answer : done) cut.stamps.push_back(decode_stamps(answer.payload));
    return cut;
  }

 private:
  void advance(const std::vector<std::vector<Position>>& targets, std::uint64_t limit) {
    std::vector<Bytes> payloads;
    for (const auto& positions : targets) payloads.push_back(encode(positions));
    const Answers there =
        ask(client_, "a checkpoint's advance", header_of(PsType::kAdvance, number_, limit),
            payloads, request_.timeout);
    require_type(there, PsType::kText);
    for (std::uint32_t shard = 0; shard < there.size(); ++shard) {
      const std::string missing = decode_text(there[shard].payload);
      if (!missing.empty())
        throw TimedOut(str(
            "a checkpoint: shard ", shard, " waited ", limit,
            " ms in vain for the rest of pushes that other shards have: ", missing,
            ". Nothing was cut; try again. A client that has lost a server of its own has to be ",
            "closed"));
    }
  }

  Client& client_;
  const std::uint64_t number_;
  const CutRequest& request_;
  bool is_cut_ = false;
};

}  // namespace

std::vector<std::vector<Position>> targets_of(const std::vector<std::vector<Position>>& frozen) {
  // By client: its latest incarnation, and how far that has to come on each shard.
  struct Reach {
    std::uint64_t incarnation = 0;
    std::vector<std::uint64_t> seqs;
  };
  std::map<std::uint32_t, Reach> reaches;
  for (std::size_t shard = 0; shard < frozen.size(); ++shard) {
    for (const Position& position : frozen[shard]) {
      Reach& reach = reaches[position.client];
      if (position.incarnation < reach.incarnation) continue;
      if (position.incarnation > reach.incarnation)
        reach = {position.incarnation, std::vector<std::uint64_t>(frozen.size(), 0)};
      for (std::size_t other = 0; other < std::min(position.tail.size(), frozen.size()); ++other)
        reach.seqs[other] = std::max(reach.seqs[other], position.tail[other]);
      reach.seqs[shard] = std::max(reach.seqs[shard], position.seq);
    }
  }
  std::vector<std::vector<Position>> targets(frozen.size());
  for (const auto& [client, reach] : reaches)
    for (std::size_t shard = 0; shard < frozen.size(); ++shard)
      if (reach.seqs[shard] > 0)
        targets[shard].push_back({client, reach.incarnation, reach.seqs[shard], {}});
  return targets;
}

Cut take_cut(Client& client, const CutRequest& request) {
  require_all(client, request.jobs.size(), "a checkpoint");
  if (!request.bases.empty()) require_all(client, request.bases.size(), "a checkpoint's base");
  // What was begun before belongs to the checkpoint, and the freeze overtakes what is not sent.
  client.flush(request.timeout);
  return Freeze(client, new_number(), request).cut();
}

std::uint64_t begin_load(Client& client, const std::vector<std::string>& jobs, Millis timeout) {
  require_all(client, jobs.size(), "load");
  const std::uint64_t number = new_number();
  std::vector<Bytes> payloads;
  for (const std::string& job : jobs) payloads.push_back(encode_text(job));
  try {
    begin_jobs(client, number, payloads, timeout);
  } catch (...) {
    try {
      give_up_load(client, number);
    } catch (const std::exception&) {
      // It ends with this client's connection.
    }
    throw;
  }
  return number;
}

std::uint64_t go_on_with_load(Client& client, const std::string& job, Millis timeout) {
  const std::uint64_t number = new_number();
  begin_jobs(client, number, std::vector<Bytes>(client.shards(), encode_text(job)), timeout);
  return number;
}

void give_up_load(Client& client, std::uint64_t number) {
  tell_each(client, "the end of a load", header_of(PsType::kThaw, number), {});
}

void end_load(Client& client, const std::string& job) {
  tell_each(client, "load", header_of(PsType::kLoad, new_number()), encode_text(job));
}

std::vector<std::string> await_job(Client& client, std::uint64_t number, Millis timeout) {
  const Answers answers =
      ask(client, "a checkpoint's files", header_of(PsType::kJob, number), {}, timeout);
  require_type(answers, PsType::kText);
  std::vector<std::string> results;
  for (const auto& answer : answers) results.push_back(decode_text(answer.payload));
  return results;
}

}  // namespace gradring::ps
