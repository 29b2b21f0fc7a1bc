"""Every fault that the audio source can report: stable codes, each with its sentence."""

from __future__ import annotations

__all__ = ["CODES"]

CODES = {
    "audio-bad-header": "the header can't be read",
    "audio-chained": "an Ogg file is a chain of several streams; all of them were decoded",
    "audio-changed": "the file changed while it was read",
    "audio-channels": "the file has other channels than the options allow",
    "audio-damaged": "bytes in the middle are damaged or missing; the samples around them are kept",
    "audio-decode-error": "the decoder stopped at an error",
    "audio-decoder-crash": "the decoder process died",
    "audio-duplicate": "the same file was given twice",
    "audio-empty": "the recording holds no sample",
    "audio-flac-checksum": "the samples do not have the MD5 that the FLAC header states",
    "audio-format-changes": "channels, sample rate or sample format change within the file",
    "audio-header-format": "the header claims another sample format than the frames hold; the frames count",
    "audio-header-frames": "the header claims another length than was decoded; the decoded length counts",
    "audio-length-unstated": "the header leaves the length open (a recorder that lost power, a stream)",
    "audio-metadata-duration": "the metadata state another duration than was decoded; the audio counts",
    "audio-metadata-missing": "the metadata have no row for the file",
    "audio-metadata-unmatched": "a row of the metadata names no file",
    "audio-more-data": "a WAV has more samples behind those that its header tells of; they were not read",
    "audio-more-streams": "the file holds several streams of audio side by side; the first was read",
    "audio-no-frames": "no MPEG audio frame can be found",
    "audio-no-stream": "the container holds no audio",
    "audio-nonfinite": "samples are NaN or infinite",
    "audio-out-of-range": "samples are so far beyond full scale that they are no audio",
    "audio-rate": "the sample rate can't be converted, or is another than that of all and none was chosen",
    "audio-second-decoder": "the first decoder failed, a second one decoded it",
    "audio-timeout": "the decoder made no progress within the time limit",
    "audio-too-long": "the file decodes to more than the longest recording allowed",
    "audio-truncated": "the file ends before its header says; what is there is kept",
    "audio-unreadable": "the file can't be opened or read",
    "audio-unrecognised": "the content is of no kind of audio known here",
    "audio-unsupported": "a legal kind of file that no decoder here reads",
}
