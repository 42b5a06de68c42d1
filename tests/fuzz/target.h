// What a fuzz target provides. handshake_fuzz, messages_fuzz, op_header_fuzz and ps_frames_fuzz
// implement it; libFuzzer (clang) or seeded_driver.cc (any compiler) drives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// Feeds one input to the code under test. Throws nothing: a broken promise aborts the process.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count);

namespace gradring::fuzz {

// Valid inputs, which seeded_driver.cc damages.
std::vector<std::vector<std::byte>> examples();

// Ends the process with `promise` on standard error unless it holds.
void require(bool holds, const char* promise);

}  // namespace gradring::fuzz
