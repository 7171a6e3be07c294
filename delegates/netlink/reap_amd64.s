//go:build !race

#include "go_asm.h"
#include "textflag.h"

// func cloneSender(fd, stack, request, n uintptr, p *parcel, toLen uintptr) (pid int)
//
// clone(2) with CLONE_VM: the child shares our memory, so no page table is
// copied and no page of ours is copied on its next write. It has a stack of its
// own, which it does not touch, and lives in registers that a system call keeps.
TEXT ·cloneSender(SB), NOSPLIT, $0-56
	MOVQ fd+0(FP), R12
	MOVQ stack+8(FP), SI
	MOVQ request+16(FP), R13
	MOVQ n+24(FP), R15
	MOVQ p+32(FP), BX
	MOVQ toLen+40(FP), R9
	MOVQ $0x111, DI // CLONE_VM | SIGCHLD
	XORL DX, DX
	XORL R10, R10
	XORL R8, R8
	MOVL $56, AX // clone
	SYSCALL
	TESTQ AX, AX
	JEQ child
	MOVQ AX, pid+48(FP)
	RET

child:
	MOVQ R9, BP // the length survives in BP: close_range uses no R9, setsid nothing
	TESTQ R12, R12
	JEQ above
	XORL DI, DI
	LEAQ -1(R12), SI
	XORL DX, DX
	MOVL $436, AX // close_range(0, fd-1, 0)
	SYSCALL

above:
	LEAQ 1(R12), DI
	MOVL $0x7fffffff, SI
	XORL DX, DX
	MOVL $436, AX // close_range(fd+1, INT_MAX, 0)
	SYSCALL
	MOVL $112, AX // setsid
	SYSCALL
	MOVQ R12, DI
	MOVQ R13, SI
	MOVQ R15, DX
	XORL R10, R10
	LEAQ parcel_to(BX), R8
	MOVQ BP, R9
	MOVL $44, AX // sendto
	SYSCALL
	LEAQ parcel_linger(BX), DI
	XORL SI, SI
	MOVL $35, AX // nanosleep
	SYSCALL

exit:
	XORL DI, DI
	MOVL $231, AX // exit_group
	SYSCALL
	JMP exit
