"""What readers are answered from. Event loop's thread; knows nothing of write/ and replica/."""
