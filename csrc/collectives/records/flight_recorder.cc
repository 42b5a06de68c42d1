#include "collectives/records/flight_recorder.h"

#include <unistd.h>

#include <algorithm>

#include "base/file.h"
#include "base/log.h"
#include "collectives/records/record_text.h"

namespace gradring::collectives {
namespace {

// Of communicators that are over: what they did last may be what the survivors' failure is about.
constexpr std::ptrdiff_t kClosedKept = 4;
// With a trace: rings of 4 MiB, of which only what is used takes memory.
constexpr std::size_t kTraceOperations = 1 << 15;
constexpr std::ptrdiff_t kClosedTraced = 32;
constexpr std::size_t kClockReadings = 1024;
// Clocks that are well kept drift apart by a few us a second, one that is being set right by 500.
constexpr Millis kClockPause{2000};

std::string in_job(std::string directory, const std::string& job) {
  static constexpr std::string_view kJob = "{job}";
  const std::size_t at = directory.find(kJob);
  return at == std::string::npos ? directory : directory.replace(at, kJob.size(), job);
}

std::string hex(const wire::SessionId& session) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : std::span(session).first(6)) {
    text += kDigits[static_cast<unsigned>(byte) >> 4];
    text += kDigits[static_cast<unsigned>(byte) & 15];
  }
  return text;
}

}  // namespace

Logbook::Logbook(FlightRecorder& recorder, std::shared_ptr<transport::Group> group,
                 std::size_t size, Queue queue)
    : collectives(size),
      messages(size),
      recorder_(recorder),
      group_(std::move(group)),
      queue_(std::move(queue)) {}

Failure Logbook::noted(Failure failure) const {
  const std::string path = recorder_.save(failure);
  if (!path.empty())
    failure.note = str("what this rank did last: ", path, " (all ranks': gradring doctor --job ",
                       path.substr(0, path.rfind('/')), ")");
  return failure;
}

FlightRecorder::FlightRecorder(const transport::World& world, RecordOptions options)
    : options_(std::move(options)), job_(hex(world.session())), rank_(world.rank()) {
  for (Rank rank = 0; rank < world.world_size(); ++rank)
    addresses_.push_back(world.member(rank).tcp_address);
  options_.directory = in_job(options_.directory, job_);
  options_.trace_directory = in_job(options_.trace_directory, job_);
  if (traces()) {
    options_.operations = std::max(options_.operations, kTraceOperations);
    OperationRing::stamp_at_once();
  }
  scale_.add(TickAnchor::read());
}

std::shared_ptr<Logbook> FlightRecorder::open(std::shared_ptr<transport::Group> group,
                                              Logbook::Queue queue) {
  auto logbook =
      std::make_shared<Logbook>(*this, std::move(group), options_.operations, std::move(queue));
  const std::lock_guard lock(mutex_);
  logbooks_.push_back(logbook);
  return logbook;
}

void FlightRecorder::close(const std::shared_ptr<Logbook>& logbook) {
  const std::lock_guard lock(mutex_);
  logbook->queue_ = nullptr;
  const auto is_closed = [](const auto& entry) { return entry->queue_ == nullptr; };
  if (std::count_if(logbooks_.begin(), logbooks_.end(), is_closed) >
      (traces() ? kClosedTraced : kClosedKept))
    logbooks_.erase(std::find_if(logbooks_.begin(), logbooks_.end(), is_closed));
}

std::string FlightRecorder::report(const Failure& failure) const {
  const std::lock_guard lock(mutex_);
  RecordText text({job_, rank_, addresses_, scale_}, failure);
  for (const auto& logbook : logbooks_) {
    std::vector<OperationRecord> operations = logbook->collectives.read();
    if (logbook->queue_) {
      const auto queued = logbook->queue_();
      operations.insert(operations.end(), queued.begin(), queued.end());
    }
    text.add(*logbook->group_, logbook->queue_ == nullptr, operations, logbook->messages.read());
  }
  return text.finish(Spans::of_process().read());
}

Activity FlightRecorder::activity(const Logbook& logbook) const {
  Activity activity{logbook.collectives.begun(), logbook.messages.begun(), 0};
  Ticks oldest = 0;
  for (const OperationRecord& record : logbook.collectives.read())
    if (record.state == OperationState::kStarted && record.begun != 0)
      oldest = oldest == 0 ? record.begun : std::min(oldest, record.begun);
  if (oldest == 0) return activity;
  TickScale scale;
  {
    const std::lock_guard lock(mutex_);
    scale = scale_;
  }
  const TickAnchor now = TickAnchor::read();
  scale.add(now);
  activity.under_way_nanos = std::max<std::int64_t>(1, now.nanos - scale.nanos(oldest));
  return activity;
}

void FlightRecorder::read_clocks(const std::shared_ptr<FlightRecorder>& recorder,
                                 transport::World& world) {
  if (!recorder->traces()) return;
  const auto read = [known = std::weak_ptr(recorder), &world] {
    if (const auto found = known.lock()) found->note_clock(world.compare_clocks());
  };
  // A job may be over before the scribe's thread begins. Who is on rank 0's host asks nobody.
  if (world.shares_host(world.rank(), 0)) read();
  world.scribe().repeat(kClockPause, read);
}

void FlightRecorder::note_clock(const std::optional<transport::ClockOffset>& clock) {
  const TickAnchor now = TickAnchor::read();
  const std::lock_guard lock(mutex_);
  scale_.add(now);
  if (clock && clock_.size() < kClockReadings) clock_.push_back({now.nanos, *clock});
}

void FlightRecorder::finish() noexcept {
  if (!traces()) return;
  try {
    std::string path;
    std::string text;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& logbook : logbooks_)
        if (logbook->queue_) return;
      TraceText trace({job_, rank_, addresses_, scale_});
      for (const auto& logbook : logbooks_)
        trace.add(*logbook->group_, logbook->collectives, logbook->messages);
      trace.add(Spans::of_process().read());
      text = trace.finish(clock_);
    }
    const std::string problem =
        write_file(str(options_.trace_directory, "/rank-", rank_, ".trace.json"), text);
    if (!problem.empty()) log_warning(rank_, str("cannot write the trace: ", problem));
  } catch (const std::exception& error) {
    log_warning_once(rank_, "trace", str("cannot make the trace: ", error.what()));
  }
}

std::string FlightRecorder::save(const Failure& failure) noexcept {
  if (options_.directory.empty() || options_.operations == 0) return "";
  try {
    const std::lock_guard lock(file_mutex_);
    const std::string path = str(options_.directory, "/rank-", rank_, ".json");
    const std::string problem = write_file(path, report(failure));
    if (problem.empty()) return path;
    log_warning_once(rank_, "record", str("cannot write what this rank did last: ", problem));
  } catch (const std::exception& error) {
    log_warning_once(rank_, "record", str("cannot say what this rank did last: ", error.what()));
  }
  return "";
}

}  // namespace gradring::collectives
