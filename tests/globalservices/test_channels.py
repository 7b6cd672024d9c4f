"""The low-level interface: channels, pools and blocks of memory, found by number, name, or serialize()."""

from __future__ import annotations

import base64
import pickle
from typing import Any

import pytest

from conftest import Site
from dragon.channels import (
    Channel,
    ChannelDestroyed,
    ChannelEmpty,
    ChannelFull,
    ChannelHandleNotOpenError,
    ChannelRecvTimeout,
    ChannelSendTimeout,
    ChannelSet,
    ChannelSetTimeout,
    EventType,
    Many2ManyReadingChannelFile,
    Many2ManyWritingChannelFile,
    Message,
    Peer2PeerReadingChannelFile,
    Peer2PeerWritingChannelFile,
    PollResult,
)
from dragon.globalservices import channel as channels
from dragon.globalservices import pool as pools
from dragon.infrastructure.channel_desc import ChannelDescriptor
from dragon.infrastructure.errors import NotSupportedError
from dragon.infrastructure.facts import default_pool_muid_from_index
from dragon.infrastructure.parameters import this_process
from dragon.managed_memory import (
    DragonMemoryError,
    DragonPoolAllocationNotAvailable,
    DragonPoolAttachFail,
    DragonPoolError,
    MemoryAlloc,
    MemoryPool,
)
from dragon.native import Process, Queue
from dragon.rc import DragonError

POOL = default_pool_muid_from_index(0)


@pytest.fixture
def channel() -> Channel:
    return Channel.make_process_local(capacity=2)


def test_messages_of_bytes_arrive_in_order(channel: Channel) -> None:
    with channel.sendh() as sender, channel.recvh() as receiver:
        sender.send_bytes(b"one")
        sender.send_bytes(bytearray(b"two and more"), 3)
        assert channel.num_msgs == 2
        assert [receiver.recv_bytes(), receiver.recv_bytes(timeout=5)] == [b"one", b"two"]


def test_send_and_receive_end_at_their_timeout_and_fail_on_a_closed_handle(channel: Channel) -> None:
    with channel.sendh(timeout=0.05) as sender, channel.recvh(timeout=0.05) as receiver:
        with pytest.raises(ChannelRecvTimeout) as raised:
            receiver.recv_bytes()
        assert raised.value.lib_err == DragonError.TIMEOUT
        for options in ({"blocking": False}, {"timeout": 0}):
            with pytest.raises(ChannelEmpty):
                receiver.recv_bytes(**options)  # type: ignore[arg-type]
        sender.send_bytes(b"1")
        sender.send_bytes(b"2")
        with pytest.raises(ChannelSendTimeout):
            sender.send_bytes(b"3")
        with pytest.raises(ChannelFull):
            sender.send_bytes(b"3", blocking=False)
    with pytest.raises(ChannelHandleNotOpenError):
        sender.send_bytes(b"3")
    with pytest.raises(ChannelHandleNotOpenError):
        channel.recvh().recv()


def test_poll_reports_the_events_of_a_channel_and_of_a_channel_set(channel: Channel) -> None:
    result = PollResult()
    assert not channel.poll(0.01)
    assert not channel.poll(0, poll_result=result)
    assert (result.value, result.rc) == (0, DragonError.TIMEOUT)
    assert channel.poll(1, event_mask=EventType.POLLEMPTY)
    other = Channel.make_process_local()
    both = ChannelSet(None, [other, channel])
    with pytest.raises(ChannelSetTimeout):
        both.poll(0.01)
    with channel.sendh() as sender:
        sender.send_bytes(b"1")
        assert both.poll(5) == (channel, EventType.POLLIN)
        assert channel.poll(1, event_mask=EventType.POLLOUT)
        sender.send_bytes(b"2")
    assert not channel.poll(0.01, event_mask=EventType.POLLOUT)
    assert channel.poll(0, event_mask=EventType.POLLFULL)
    assert channel.poll(0, event_mask=EventType.POLLSIZE) == 2
    assert channel.poll(0, event_mask=EventType.POLLRESET)
    assert channel.num_msgs == 0


def test_a_message_carries_its_hints_and_client_id(channel: Channel) -> None:
    pool = MemoryPool(4096)
    sent = Message.create_alloc(pool, 5, hints=3, clientid=4)
    sent.bytes_memview()[:] = b"12345"
    with channel.sendh() as sender, channel.recvh() as receiver:
        sender.send(sent)
        found = receiver.recv()
        assert (found.tobytes(), found.hints, found.clientid) == (b"12345", 3, 4)
        sender.send(sent, ownership=sender.transfer_ownership_on_send)
        assert pool.num_allocations == 0
        into = Message.create_empty()
        assert receiver.recv(into) is into
        into.clear_payload(0, 2)
        assert into.tobytes() == bytes(2) + b"345"
        sender.send(into)
        assert receiver.recv_bytes() == bytes(2) + b"345"


@pytest.mark.parametrize(
    ("writing", "reading"),
    [
        (Peer2PeerWritingChannelFile, Peer2PeerReadingChannelFile),
        (Many2ManyWritingChannelFile, Many2ManyReadingChannelFile),
    ],
)
def test_objects_are_pickled_through_the_file_adapters(channel: Channel, writing: Any, reading: Any) -> None:
    value = {"large": bytes(300_000), "list": [1, 2]}
    for _ in range(2):
        with writing(channel) as file:
            pickle.dump(value, file, protocol=5)
    for _ in range(2):
        with reading(channel) as file:
            assert pickle.load(file) == value
    with reading(channel) as file:
        file.set_adapter_timeout(timeout=0.01)
        with pytest.raises(ChannelRecvTimeout):
            file.read()
    with pytest.raises(TypeError), writing(channel) as file:
        print("half", file=file)
    assert channel.num_msgs == 0


def echo(name: str, back: Channel) -> None:
    there = Channel.attach(channels.query(name).sdesc)
    with there.recvh() as receiver, back.sendh() as sender:
        while data := receiver.recv_bytes():
            sender.send_bytes(data[::-1])


def test_another_process_finds_a_channel_by_its_name(channel: Channel) -> None:
    described = channels.create(POOL, "echo")
    process = Process(echo, ("echo", channel))
    process.start()
    with Channel.attach(described.sdesc).sendh() as sender, channel.recvh() as receiver:
        sender.send_bytes(b"abc")
        assert receiver.recv_bytes(timeout=60) == b"cba"
        sender.send_bytes(b"")
    assert process.join(timeout=60) == 0
    channels.destroy("echo")


def test_channels_are_found_by_number_and_by_name() -> None:
    first = channels.create(POOL, "first")
    assert channels.query("first") == channels.query(first.c_uid) == channels.create(POOL, "first", soft=True)
    assert channels.join("first", timeout=1).c_uid == first.c_uid
    assert first.c_uid in channels.get_list()
    with pytest.raises(channels.ChannelError, match="'first' exists already"):
        channels.create(POOL, "first")
    with pytest.raises(channels.ChannelError, match="no channel 'other'"):
        channels.query("other")
    with pytest.raises(TimeoutError):
        channels.join("other", timeout=0.01)
    attached = Channel.attach(first.sdesc)
    channels.destroy("first")
    with pytest.raises(ChannelDestroyed):
        attached.poll(0)
    assert channels.query(first.c_uid).state == ChannelDescriptor.State.DEAD
    assert channels.wait(first.c_uid).state == ChannelDescriptor.State.DEAD
    with pytest.raises(channels.ChannelError):
        channels.destroy("first")
    second = channels.create(POOL, "first")
    assert second.c_uid != first.c_uid
    channels.destroy(second.c_uid)


def test_channels_of_another_node_can_be_used(site: Site) -> None:
    program = site.write(
        """
        from dragon.channels import Channel
        from dragon.globalservices import channel
        from dragon.infrastructure.facts import default_pool_muid_from_index
        from dragon.native.machine import System
        from dragon.native.process import Process

        def answer():
            with Channel.attach(channel.join("there", timeout=60).sdesc).recvh() as receiver:
                data = receiver.recv_bytes(timeout=60)
            with Channel.attach(channel.query("here").sdesc).sendh() as sender:
                sender.send_bytes(data * 2)

        if __name__ == "__main__":
            here = channel.create(default_pool_muid_from_index(0), "here")
            process = Process(answer, policy=System().hostname_policies()[1])
            process.start()
            there = Channel.attach(channel.create(default_pool_muid_from_index(1), "there").sdesc)
            with there.sendh() as sender, Channel.attach(here.sdesc).recvh() as receiver:
                sender.send_bytes(b"abc")
                print(there.is_local, receiver.recv_bytes(timeout=60))
            process.join()
        """
    )
    done = site.dragon("--nodes", "2", program)
    assert done.stdout == "False b'abcabc'\n", done.stderr


# ---- memory


def test_a_pool_limits_the_memory_of_its_blocks() -> None:
    pool = MemoryPool(1000)
    block = pool.alloc(600)
    assert (pool.free_space, pool.num_allocations, round(pool.utilization)) == (400, 1, 60)
    with pytest.raises(DragonPoolAllocationNotAvailable, match="600 of the 1000 bytes"):
        pool.alloc(500)
    block.free()
    with pytest.raises(DragonMemoryError):
        block.get_memview()
    second = pool.alloc(1000)
    pool.destroy()
    with pytest.raises(DragonPoolError, match="destroyed"):
        pool.alloc(1)
    second.get_memview()[:] = bytes(1000)


def test_a_clone_shares_the_memory_of_its_block_and_a_copy_does_not() -> None:
    pool = MemoryPool.attach(base64.b64decode(this_process.default_pd))
    assert (pool.muid, pool.is_local) == (POOL, True)
    block = pool.alloc_from_bytes(b"0123456789")
    part = block.clone(2, 3)
    copied = block.copy(pool)
    part.get_memview()[:] = b"abc"
    assert bytes(block.get_memview()) == b"01abc56789"
    assert bytes(copied.get_memview()) == b"0123456789"
    block.clear(8)
    assert bytes(block.get_memview()) == b"01abc567\0\0"
    assert block.get_int_ptr() + 2 == part.get_int_ptr()
    assert block.is_the_same_as(MemoryAlloc.attach(block.serialize()))
    assert not block.is_the_same_as(copied)


def write_into(serialized: bytes, block: MemoryAlloc, queue: Queue) -> None:
    MemoryAlloc.attach(serialized).get_memview()[:2] = b"ab"
    block.get_memview()[2:4] = b"cd"
    queue.put(MemoryPool.attach(pools.query("shared").sdesc).free_space)


def test_blocks_and_pools_are_shared_with_another_process() -> None:
    described = pools.create(4096, "shared")
    pool, queue = MemoryPool.attach(described.sdesc), Queue()
    assert pool.muid == described.m_uid in pools.get_list()
    block = pool.alloc(96)
    process = Process(write_into, (block.serialize(), block, queue))
    process.start()
    assert queue.get(timeout=60) == 4000
    assert process.join(timeout=60) == 0
    assert bytes(block.get_memview()[:5]) == b"abcd\0"
    with pytest.raises(pools.PoolError, match="'shared' exists already"):
        pools.create(1, "shared")
    assert pools.create(1, "shared", soft=True).m_uid == described.m_uid
    pools.destroy("shared")
    with pytest.raises(pools.PoolError, match="no pool 'shared'"):
        pools.query("shared")
    assert pools.query(POOL).sdesc == MemoryPool.default(POOL).serialize()


def test_the_error_for_an_unsupported_method_names_the_replacement(channel: Channel) -> None:
    pool = MemoryPool(100)
    for use, advice in (
        (lambda: pool.alloc_from_id(3), "serialize"),
        (lambda: pool.register(timeout=1), "GPU's library"),
        (lambda: Channel(None, 1, semaphore=True), "native.semaphore"),
        (lambda: channel.recvh(signal=10), "poll"),
    ):
        with pytest.raises((NotSupportedError, AttributeError), match=advice):
            use()
    with pytest.raises(DragonPoolAttachFail, match="not what serialize"):
        MemoryPool.attach(b"something else")
