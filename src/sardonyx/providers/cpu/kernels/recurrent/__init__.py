"""LSTM, GRU and RNN layers."""
