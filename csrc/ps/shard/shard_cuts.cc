// One cut through all shards (promise P11): the saver freezes every shard, finds out how far each
// client has come on any of them, lets all shards come there, and cuts.
#include <algorithm>
#include <new>
#include <utility>

#include "ps/shard/shard_state.h"

namespace gradring::ps {

using wire::PsHeader;
using wire::PsType;

namespace {

// Saves and loads under way, and results of those that ended, for who asks late. Every rank of a
// job may ask for a load, by mistake: all but one are refused, each by its job.
constexpr std::size_t kJobsKept = 256;
constexpr std::uint64_t kLongestFreezeMs = 60'000;
// A saver makes a broken connection anew in milliseconds, over a long way in some tenths of a
// second. One that takes longer begins the cut again; one that has died keeps nobody waiting.
constexpr Millis kSaverAway{1000};
constexpr char kMelted[] =
    "the freeze has melted: the checkpoint took too long to gather, its saver had no connection "
    "here for a second, or a load came between; try again";

}  // namespace

bool is_control(PsType type) {
  switch (type) {
    case PsType::kFreeze:
    case PsType::kAdvance:
    case PsType::kCut:
    case PsType::kThaw:
    case PsType::kLoad:
    case PsType::kJob: return true;
    default: return false;
  }
}

void Shard::Impl::require_no_load() const {
  if (holds_changes)
    throw InvalidArgument(
        "a checkpoint that was just loaded is still being written to this server's disk; wait for "
        "that");
}

bool Shard::Impl::is_held(const Frame& frame, std::uint32_t client) {
  if ((!frozen && !holds_changes) || !wire::is_numbered(frame.header.type)) return false;
  const ClientState* state = clients.find(client);
  if (state != nullptr && frame.header.seq <= state->seq) return false;  // Done already.
  if (holds_changes) return true;
  const auto target = frozen->targets.find(client);
  if (target == frozen->targets.end() || state == nullptr) return true;
  return target->second.incarnation != state->incarnation || frame.header.seq > target->second.seq;
}

void Shard::Impl::control(Connection connection, const Frame& frame, Time now, Answers& answers) {
  const std::uint64_t cut_id = frame.header.a;
  switch (frame.header.type) {
    case PsType::kFreeze: freeze(connection, frame, now, answers); return;
    case PsType::kAdvance: advance(connection, frame, now, answers); return;
    case PsType::kCut:
      answers.push_back({connection, cut(frame, *guests.at(connection).client)});
      if (frozen && frozen->cut == cut_id) thaw(now, answers);
      return;
    case PsType::kThaw:
      if (frozen && frozen->cut == cut_id) thaw(now, answers);
      // Another shard has refused the cut: who writes this one's part is told with its next piece.
      if (snapshot && snapshot->cut == cut_id)
        end_snapshot();
      else
        give_up_load(cut_id, *guests.at(connection).client);
      answers.push_back({connection, answer_to(frame.header, PsType::kDone)});
      return;
    case PsType::kLoad: {
      // Asked again after a lost answer: once is enough.
      if (note_job(cut_id, *guests.at(connection).client))
        jobs.push_back({cut_id, true, decode_text(frame.payload)});
      answers.push_back({connection, answer_to(frame.header, PsType::kDone)});
      return;
    }
    case PsType::kJob:
      if (!who_asked_for(cut_id) && !has_ended(cut_id))
        throw PeerLost(-1,
                       "this shard knows nothing of it: the server was started again meanwhile. A "
                       "checkpoint that was being saved is not there: save again; one that was "
                       "being loaded may be loaded in part: load again");
      waiting.push_back({connection, frame.header, cut_id});
      answer_job(waiting.back(), answers);
      return;
    default: throw ProtocolError(str("frame: nobody expects ", wire::name(frame.header.type)));
  }
}

void Shard::Impl::freeze(Connection connection, const Frame& frame, Time now, Answers& answers) {
  const std::uint64_t cut_id = frame.header.a;
  if (frozen && now >= end_of_freeze()) melt(now, answers);  // Nobody's any more, and in no way.
  if (frozen && frozen->cut != cut_id)
    throw InvalidArgument("another checkpoint is just being taken; try again");
  require_no_load();
  if (snapshot && snapshot->cut != kOwnSnapshot)
    throw InvalidArgument(str("the checkpoint ", snapshot->place,
                              " is still being written; wait for it, or until its own timeout has ",
                              "passed"));
  const Millis limit{static_cast<std::int64_t>(std::min(frame.header.b, kLongestFreezeMs))};
  if (!frozen) frozen = Freeze{};
  frozen->cut = cut_id;
  frozen->until = now + limit;
  frozen->client = *guests.at(connection).client;
  frozen->incarnation = clients.find(frozen->client)->incarnation;
  std::vector<Position> positions;
  for (const auto& [client, state] : clients.all()) {
    if (state.seq == 0) continue;
    // The rest of what a dead client began will never come, and no checkpoint waits for it.
    positions.push_back(
        {client, state.incarnation, state.seq, state.is_given_up ? wire::Tail{} : state.tail});
  }
  Frame answer = answer_to(frame.header, PsType::kFrozen);
  answer.header.b = lineage;
  answer.payload = encode(positions);
  answers.push_back({connection, std::move(answer)});
}

void Shard::Impl::advance(Connection connection, const Frame& frame, Time now, Answers& answers) {
  if (!frozen || frozen->cut != frame.header.a) throw TimedOut(kMelted);
  frozen->targets.clear();
  for (const Position& position : decode_positions(frame.payload)) {
    const ClientState* state = clients.find(position.client);
    // Of a client that was replaced meanwhile nothing more will come. One that is not known here
    // is still about to say hello.
    if (state == nullptr || state->incarnation <= position.incarnation)
      frozen->targets[position.client] = position;
  }
  const Millis limit{static_cast<std::int64_t>(std::min(frame.header.b, kLongestFreezeMs))};
  frozen->advancing = {connection, frame.header, std::min(now + limit, frozen->until)};
  release_held(now, answers);
  settle_advance(answers);
}

std::string Shard::Impl::not_there() {
  std::string text;
  for (const auto& [client, target] : frozen->targets) {
    const ClientState* state = clients.find(client);
    if (state != nullptr && state->incarnation > target.incarnation) continue;
    const bool is_known = state != nullptr && state->incarnation == target.incarnation;
    const std::uint64_t done = is_known ? state->seq : 0;
    if (done < target.seq)
      text +=
          str(text.empty() ? "" : ", ", "client ", client, " (", target.seq - done, " requests)");
  }
  return text;
}

void Shard::Impl::settle_advance(Answers& answers) {
  if (!frozen || !frozen->advancing || !not_there().empty()) return;
  answers.push_back(
      {frozen->advancing->connection, answer_to(frozen->advancing->request, PsType::kText)});
  frozen->advancing.reset();
}

void Shard::Impl::require_room_for_a_job() const {
  if (known_jobs.size() >= kJobsKept)
    throw InvalidArgument(str(kJobsKept,
                              " saves and loads are under way on this shard, as many as it takes; "
                              "call save and load on one worker, and let the others wait for it"));
}

bool Shard::Impl::note_job(std::uint64_t cut_id, std::uint32_t client) {
  if (who_asked_for(cut_id) || has_ended(cut_id)) return false;
  require_room_for_a_job();
  known_jobs.emplace_back(cut_id, client);
  return true;
}

bool Shard::Impl::has_ended(std::uint64_t cut_id) const {
  return std::any_of(ended.begin(), ended.end(),
                     [&](const Ended& end) { return end.cut == cut_id; });
}

std::optional<std::uint32_t> Shard::Impl::who_asked_for(std::uint64_t cut_id) const {
  for (const auto& [known, client] : known_jobs)
    if (known == cut_id) return client;
  return std::nullopt;
}

Frame Shard::Impl::cut(const Frame& frame, std::uint32_t client) {
  if (last_cut_answer && last_cut == frame.header.a) {
    // Asked again after a lost answer: once is enough.
    Frame answer = *last_cut_answer;
    answer.header.request = frame.header.request;
    return answer;
  }
  require_no_load();
  if (!frozen || frozen->cut != frame.header.a) throw TimedOut(kMelted);
  // What the base had: only later changes are read out.
  wire::Reader in(frame.payload);
  std::map<std::uint64_t, std::uint64_t> since;
  const std::uint32_t bases = in.get_count(1u << 16);
  for (std::uint32_t i = 0; i < bases; ++i) {
    const auto table = in.get<std::uint64_t>();
    since[table] = in.get<std::uint64_t>();
  }
  const std::string job = decode_text(in.take(in.left()));
  require_room_for_a_job();
  if (snapshot) end_snapshot();  // The owner's own; it begins again when this one is done.
  begin_snapshot(frame.header.a, since);
  snapshot->place = job.substr(0, job.find('\n'));
  jobs.push_back({frame.header.a, false, job});
  note_job(frame.header.a, client);
  PsHeader mark;
  mark.type = PsType::kCut;
  mark.a = frame.header.a;
  journal->append(mark, {}, 0, 0);
  Frame answer = answer_to(frame.header, PsType::kDone);
  wire::Writer stamps;
  stamps.put(static_cast<std::uint32_t>(store.all().size()));
  for (const auto& [id, table] : store.all()) {
    stamps.put(id);
    stamps.put(table.stamp());
  }
  put_bytes(answer.payload, stamps.take());
  last_cut = frame.header.a;
  last_cut_answer = answer;
  return answer;
}

void Shard::Impl::begin_snapshot(std::uint64_t cut_id,
                                 const std::map<std::uint64_t, std::uint64_t>& since) {
  snapshot = Snapshot{};
  snapshot->cut = cut_id;
  try {
    snapshot->front = front_of_snapshot();
    for (auto& [id, table] : store.all()) {
      const auto found = since.find(id);
      const std::uint64_t stamp = found == since.end() ? 0 : found->second;
      snapshot->tables.push_back(id);
      if (table.sparse) {
        table.sparse->begin_snapshot(stamp);
        continue;
      }
      if (table.dense->count() > options.snapshot_bytes / sizeof(float)) throw std::bad_alloc();
      table.dense->begin_snapshot(stamp);
    }
  } catch (...) {
    end_snapshot();
    throw;
  }
}

bool Shard::begin_snapshot() {
  if (impl_->snapshot) return false;
  impl_->begin_snapshot(kOwnSnapshot, {});
  return true;
}

void Shard::hold_changes() {
  impl_->holds_changes = true;
  impl_->has_let_changes_go = false;
}

void Shard::let_changes_go_on() {
  impl_->has_let_changes_go = std::exchange(impl_->holds_changes, false);
}

bool Shard::holds_changes() const {
  return impl_->holds_changes;
}

bool Shard::has_own_snapshot() const {
  return impl_->snapshot && impl_->snapshot->cut == kOwnSnapshot;
}

// At once if its saver will not come back: it has said goodbye, or a later process has its number.
Time Shard::Impl::end_of_freeze() const {
  const ClientState* saver = clients.find(frozen->client);
  if (saver == nullptr || saver->incarnation != frozen->incarnation) return Time{};
  if (saver->connection) return frozen->until;
  return std::min(frozen->until, saver->away_since + std::min(kSaverAway, options.client_grace));
}

void Shard::Impl::melt(Time now, Answers& answers) {
  const bool is_over = now >= end_of_freeze();
  if (frozen->advancing && (is_over || now >= frozen->advancing->until)) {
    Frame answer = answer_to(frozen->advancing->request, PsType::kText);
    answer.payload = encode_text(not_there());
    answers.push_back({frozen->advancing->connection, std::move(answer)});
    frozen->advancing.reset();
  }
  if (is_over) thaw(now, answers);
}

void Shard::Impl::thaw(Time now, Answers& answers) {
  frozen.reset();
  release_held(now, answers);
}

void Shard::Impl::void_freeze() {
  if (!frozen) return;
  frozen->cut = 0;  // Nobody's.
  frozen->until = Time{};
  if (frozen->advancing) frozen->advancing->until = Time{};
}

void Shard::Impl::hold(Guest& guest, Frame frame) {
  guest.held_bytes += bytes_of(frame);
  guest.held.push_back(std::move(frame));
}

void Shard::Impl::release_held(Time now, Answers& answers) {
  for (auto& [connection, guest] : guests) release_held_of(connection, guest, now, answers);
}

void Shard::Impl::release_held_of(Connection connection, Guest& guest, Time now, Answers& answers) {
  while (!guest.held.empty() && !is_held(guest.held.front(), *guest.client) && may_answer(guest)) {
    Frame frame = std::move(guest.held.front());
    guest.held.pop_front();
    guest.held_bytes -= bytes_of(frame);
    const PsHeader header = frame.header;
    const std::size_t before = answers.size();
    try {
      if (wire::is_numbered(header.type))
        change(connection, *guest.client, std::move(frame), answers);
      else
        read(connection, *guest.client, std::move(frame), now, answers);
    } catch (const ProtocolError& error) {
      // Not the fault of whoever ends the freeze.
      answers.push_back({connection, error_to(header, Failure::from(error))});
    } catch (const std::bad_alloc&) {
      // Nor is it an answer to them: this request is taken and lost.
      throw memory_is_full(str(wire::name(header.type), " that had waited for a checkpoint"));
    }
    for (std::size_t at = before; at < answers.size(); ++at)
      guest.released_bytes += answers[at].payload().size();
  }
}

void Shard::Impl::answer_job(const Waiting& one, Answers& answers) {
  const auto found = std::find_if(ended.begin(), ended.end(),
                                  [&](const Ended& end) { return end.cut == one.cut; });
  if (found == ended.end()) return;
  if (found->failure) {
    answers.push_back({one.connection, error_to(one.request, found->failure)});
  } else {
    Frame answer = answer_to(one.request, PsType::kText);
    answer.payload = encode_text(found->result);
    answers.push_back({one.connection, std::move(answer)});
  }
  const std::uint64_t cut_id = one.cut;
  std::erase_if(waiting, [cut_id](const Waiting& other) { return other.cut == cut_id; });
}

std::vector<Job> Shard::take_jobs() {
  return std::exchange(impl_->jobs, {});
}

void Shard::finish_job(std::uint64_t cut, const std::string& result, const Failure& failure,
                       std::vector<Answer>& answers) {
  std::erase_if(impl_->known_jobs, [&](const auto& known) { return known.first == cut; });
  impl_->ended.push_back({cut, result, failure});
  if (impl_->ended.size() > kJobsKept) impl_->ended.erase(impl_->ended.begin());
  const auto before = impl_->waiting;
  for (const Impl::Waiting& one : before)
    if (one.cut == cut) impl_->answer_job(one, answers);
}

}  // namespace gradring::ps
