// Puts a file's bytes into the library: machine code that the driver reads from memory.
#pragma once

#define KG_IMAGE(symbol, path)                                                                  \
  asm(".pushsection .rodata,\"a\",@progbits\n.balign 64\n.globl " #symbol "\n.hidden " #symbol  \
      "\n.type " #symbol ", @object\n" #symbol ":\n.incbin \"" path "\"\n.byte 0\n.size " #symbol \
      ", . - " #symbol "\n.popsection\n");                                                      \
  extern "C" __attribute__((visibility("hidden"))) const unsigned char symbol[]
