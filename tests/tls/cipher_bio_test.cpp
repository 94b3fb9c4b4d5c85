#include "cipher_bio.hpp"

#include <gtest/gtest.h>

#include <string>

#include "chunk.hpp"
#include "runloom/net/stream.hpp"

namespace runloom::tls {
namespace {

std::string take(Inbox& inbox, std::size_t most) {
  std::string text(most, '\0');
  text.resize(inbox.take(std::as_writable_bytes(std::span(text))));
  return text;
}

ChunkPtr chunk_of(std::string_view text) {
  ChunkPtr chunk = take_chunk(text.size());
  std::copy_n(net::bytes(text).data(), text.size(), chunk->data());
  chunk->end = static_cast<std::uint32_t>(text.size());
  return chunk;
}

TEST(Inbox, GivesWhatCameFirstFirst) {
  Inbox inbox;
  inbox.begin_with("early");
  inbox.feed(chunk_of("later"));
  EXPECT_EQ(inbox.size(), 10u);
  EXPECT_EQ(take(inbox, 3), "ear");
  EXPECT_EQ(take(inbox, 10), "ly");
  EXPECT_EQ(take(inbox, 2), "la");
  EXPECT_EQ(inbox.size(), 3u);
  EXPECT_EQ(take(inbox, 10), "ter");
  EXPECT_EQ(take(inbox, 10), "");
  inbox.begin_with("again");
  inbox.feed(chunk_of("more"));
  EXPECT_EQ(take(inbox, 1), "a");
  EXPECT_EQ(inbox.take_all(), "gainmore");
  EXPECT_EQ(inbox.size(), 0u);
}

TEST(CipherBio, AsksForMoreAndStops) {
  CipherPort port;
  BIO* const bio = make_cipher_bio(port);
  ASSERT_NE(bio, nullptr);
  char buffer[8];
  EXPECT_EQ(BIO_read(bio, buffer, 8), -1);
  EXPECT_TRUE(BIO_should_read(bio));
  port.in.feed(chunk_of("ab"));
  EXPECT_EQ(BIO_pending(bio), 2);
  EXPECT_EQ(BIO_read(bio, buffer, 1), 1);
  EXPECT_EQ(buffer[0], 'a');
  port.stopped = true;
  EXPECT_EQ(BIO_read(bio, buffer, 8), -1);
  EXPECT_EQ(BIO_write(bio, "xyz", 3), 3);
  EXPECT_EQ(BIO_flush(bio), 1);
  EXPECT_EQ(port.out.waiting(), 3u);
  EXPECT_EQ(BIO_eof(bio), 0);
  BIO_free(bio);
}

TEST(Chunk, IsUsedAgain) {
  Chunk* first = nullptr;
  {
    const ChunkPtr chunk = take_chunk(1);
    first = chunk.get();
    EXPECT_EQ(chunk->room(), kSmallChunk);
    chunk->end = 17;
  }
  const ChunkPtr again = take_chunk(kSmallChunk);
  EXPECT_EQ(again.get(), first);
  EXPECT_EQ(again->size(), 0u);
  EXPECT_EQ(take_chunk(kSmallChunk + 1)->room(), kLargeChunk);
  EXPECT_EQ(take_chunk(10 * kLargeChunk)->room(), kLargeChunk);
}

}  // namespace
}  // namespace runloom::tls
