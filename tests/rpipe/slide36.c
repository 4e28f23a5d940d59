int main(){
#define PIPE_WIDTH 8
rpipe_t rp;
rinit(&rank, NULL);
// create a Half Duplex RMA pipe
rpipe(rp, peer, iswriter, PIPE_WIDTH, HD_PIPE);
raddr_t addr;
int *ptr;
if (iswriter) {
addr = rmalloc(rp, sizeof(int));
ptr = rmem(rp, addr);
*ptr = SEND_VAL;
rwrite(rp, addr);
} else {
rread(rp, addr, sizeof(int));
ptr = rmem(rp, addr);
rfree(addr);
}
}
